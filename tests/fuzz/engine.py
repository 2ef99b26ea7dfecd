"""What both fuzzers share: the command line, the corpus in a folder, and faults kept one a kind.

atheris is imported only when there is something to fuzz; a file is reproduced without it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random

SLOW_S = 10.0
"""An input that takes longer is a fault. Instrumented code is several times slower than plain."""
MOST_BYTES = 1 << 16
MOST_RSS_MB = 2_048

Target = Callable[[bytes, Random], object]


def main(target: Target, argv: list[str]) -> int:
    """Fuzz `target`, or run it on the files that are named. 0 where no fault was seen."""
    parser = argparse.ArgumentParser(description="Fuzz, or reproduce the files that are named.")
    parser.add_argument("files", nargs="*", type=Path, help="inputs to run once, without atheris")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--faults", type=Path, default=Path("faults"), help="folder for inputs that fail")
    parser.add_argument("--corpus", type=Path, help="folder to keep the corpus in; else it goes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.files:
        return reproduce(target, given.files)
    if given.inside:
        fuzz(target, given)
        return 0
    given.faults.mkdir(parents=True, exist_ok=True)
    before = set(given.faults.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        corpus = given.corpus or Path(folder)
        corpus.mkdir(parents=True, exist_ok=True)
        again = [*argv, "--inside", "--corpus", str(corpus)]
        done = subprocess.run([sys.executable, sys.argv[0], *again], check=False)
        print(f"corpus: {len(list(corpus.iterdir()))} files")
    found = sorted(path for path in set(given.faults.iterdir()) - before if path.suffix != ".txt")
    for path in found:
        print(f"fault: {path}")
    print(f"{len(found)} kinds of fault")
    return 1 if found or done.returncode else 0


def reproduce(target: Target, files: list[Path]) -> int:
    """Run the target once on each file, with the dice that a fuzzer would have given it."""
    failed = 0
    for path in files:
        data = path.read_bytes()
        try:
            target(data, dice_of(data))
        except Exception:
            traceback.print_exc()
            failed = 1
        else:
            print(f"{path}: holds")
    return failed


def dice_of(data: bytes) -> Random:
    """Dice that depend on the input alone."""
    return Random(hashlib.sha256(data).digest())


def fuzz(target: Target, given: argparse.Namespace) -> None:
    """Coverage-guided, until the time is over. Never returns: libFuzzer ends the process."""
    import atheris

    from tests.fuzz import logs, mutate

    donors = list(logs.corpus())
    for data in donors:
        (given.corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    faults = Faults(given.faults)

    def one(data: bytes) -> None:
        began = time.monotonic()
        try:
            target(data, dice_of(data))
        except Exception as error:
            faults.keep(data, error)
        else:
            if time.monotonic() - began > SLOW_S:
                faults.keep(data, TimeoutError("an input that takes long"))

    def changed(data: bytes, max_size: int, seed: int) -> bytes:
        dice = Random(seed)
        if dice.random() < 0.05:
            return atheris.Mutate(data, max_size)
        return mutate.mutated(bytes(data), dice, donors, max_size=max_size)

    options = [
        f"-max_total_time={given.seconds}",
        f"-max_len={MOST_BYTES}",
        f"-rss_limit_mb={MOST_RSS_MB}",
        f"-timeout={int(SLOW_S) * 6}",
        f"-seed={given.seed}",
        f"-artifact_prefix={given.faults}{os.sep}",
        "-print_final_stats=1",
        "-len_control=0",
        "-verbosity=1",
    ]
    # atheris counts edges in bytecode: only what is tested, so that the parser of JSON stays fast.
    atheris.Setup([sys.argv[0], *options, str(given.corpus)], one, custom_mutator=changed)
    atheris.Fuzz()


class Faults:
    """Inputs that failed: the smallest of each kind, with its traceback beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}

    def keep(self, data: bytes, error: Exception) -> None:
        """Write the input, where it is the first or the smallest of its kind."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename}:{frame.name}" for frame in frames]
        kind = (
            f"{type(error).__name__} {str(error) if isinstance(error, AssertionError) else ''} {places[-2:]}"
        )
        name = f"{type(error).__name__}-{hashlib.sha256(kind.encode()).hexdigest()[:8]}"
        if len(data) >= self._sizes.get(name, sys.maxsize):
            return
        if name not in self._sizes:
            print(f"NEW FAULT {name}: {kind}", flush=True)
        self._sizes[name] = len(data)
        (self._folder / name).write_bytes(data)
        lines = traceback.format_exception(error)
        (self._folder / f"{name}.txt").write_text("".join(lines))


def instrumented() -> object:
    """Import dsh_tasks so that atheris sees its branches; a plain import where atheris is not wanted."""
    if "--inside" not in sys.argv:
        return None
    import atheris

    with atheris.instrument_imports(include=["dsh_tasks"]):
        from dsh_tasks import format as log_format
        from dsh_tasks import seed
    return log_format, seed
