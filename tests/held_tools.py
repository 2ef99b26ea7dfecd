"""Tools that a helper process runs: what does not cooperate, and what ends its process. Light to import."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


def tell(told: str, words: object) -> None:
    """Write a file whole, so that whoever waits for it never sees half."""
    Path(f"{told}.part").write_text(str(words))
    Path(f"{told}.part").rename(told)


def shell(told: str) -> str:
    """A shell that starts a background sleeper and waits."""
    subprocess.run(["sh", "-c", f"sleep 1000 & echo $$ $! > {told}.part; mv {told}.part {told}; wait"])
    return "done"


def own_session(told: str) -> None:
    """A sleeper that left the group, and its own shell as a parent."""
    command = ["sh", "-c", f"sleep 1000 & echo $$ $! > {told}.part; mv {told}.part {told}; wait"]
    subprocess.run(command, start_new_session=True)


def spin(told: str) -> None:
    tell(told, os.getpid())
    while True:
        pass


def stubborn(told: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stubborn_shell = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 1000; done"])
    tell(told, f"{os.getpid()} {stubborn_shell.pid}")
    while True:
        time.sleep(1000)


def tidy(told: str, cleaned: str) -> None:
    try:
        tell(told, os.getpid())
        time.sleep(1000)
    finally:
        tell(cleaned, "yes")


def stop_iterating() -> None:
    raise StopIteration


def leave() -> None:
    sys.exit(3)


def leave_at_once() -> None:
    os._exit(3)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    ctypes.string_at(0)


def out_of_memory() -> None:
    raise MemoryError("secret")


class Odd(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def odd() -> None:
    raise Odd


def close_all() -> str:
    os.closerange(3, 256)
    return "closed"


def fork() -> str:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return "parent" if pid else "child"


def signal_itself() -> str:
    os.kill(os.getpid(), signal.SIGTERM)
    return "still here"


def talk() -> str:
    print("on stdout", flush=True)
    os.write(1, b"\x00\x00\x00\x02{}")
    os.system("echo from a shell")
    return sys.stdin.read() + "said"


def large(mebibytes: int) -> str:
    return "x" * (mebibytes * 2**20)


def process() -> str:
    return str(os.getpid())


def add(a: int, b: int = 1) -> int:
    return a + b


def key() -> str:
    from workers.engines.agent.call_key import call_key

    return call_key.get()


def total(numbers: Iterable[int]) -> int:
    return sum(numbers)


@dataclass
class Place:
    name: str


def typed(when: datetime, place: Place, *, text: str = "") -> dict[str, object]:
    return {"year": when.year, "place": place, "letters": len(text)}


async def _later() -> str:
    return "later"


def awaitable() -> object:
    return _later()


def meet(folder: str, release: str) -> int:
    """How many are inside; leaves when released."""
    mine = Path(folder, f"{os.getpid()}-{time.monotonic_ns()}")
    mine.touch()
    while not Path(release).exists():
        time.sleep(0.005)
    inside = len(os.listdir(folder))
    mine.unlink()
    return inside


def recurse() -> int:
    return recurse() + 1


def image() -> str:
    """What the file that the environment names holds."""
    return Path(os.environ["IMAGE"]).read_text()
