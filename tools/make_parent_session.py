"""Make the packaged parent session log with the real DeepSeek Harness runtime.

    pip install deepseek-harness-sdk==0.2.1rc2 deepseek-harness-runtime-bin==0.2.1rc2
    python tools/make_parent_session.py dsh_tasks/data/parent.session.v4.jsonl

Three turns are run to their end. In the fourth the log is copied while the shell tool sleeps, so that
the copy ends at a `tool/call` without a result: an open turn, exactly as a parent has it at the moment
in which it delegates. The copy is byte for byte what the runtime wrote.

The model is `scripted_model.py`, on a free port. `--base-url` asks another server instead, which then
must give the replies below. `--cwd` is created if need be; it stands in the log, so it should be a
path that says nothing about this machine.
"""
# ruff: noqa: INP001 -- a script beside the package, not a part of it

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripted_model import Reply, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION_ID = "autumn-release"
NOTES = "Autumn release, notes of the first meeting.\nThe budget is 4200 euros.\n"
SLEEP = "sleep 6 && echo ready"

PROMPTS = [
    "We are preparing the autumn release. The codeword is marmalade. Keep it to ourselves for now.",
    "Read notes.txt and tell me what we may spend.",
    "The deadline is Friday. Plan the remaining work around it.",
    "The password is swordfish. Delegate the checks.",
]
REPLIES = [
    Reply("Understood. I keep the codeword to ourselves while we prepare the release."),
    Reply("I read the notes.", ("bash", {"command": "cat notes.txt"})),
    Reply("I have read the notes. The budget is 4200 euros."),
    Reply("Noted. I plan the remaining work so that it is done in time."),
    Reply("I wait until the tree is ready, then I delegate the checks.", ("bash", {"command": SLEEP})),
    Reply("The tree was ready, and nothing is left to do."),
]
FORBIDDEN = ["127.0.0.1", "localhost", "http://", "https://", "/home", "/root", "/tmp", "/usr"]  # noqa: S108


def rows_of(log: bytes) -> list[dict[str, Any]]:
    """The whole lines of a session log, header first."""
    return [json.loads(line) for line in log[: log.rfind(b"\n") + 1].splitlines()]


def is_open_at_a_tool(rows: list[dict[str, Any]]) -> bool:
    """Whether the log ends while the tool of the fourth turn runs."""
    return bool(rows) and rows[-1]["type"] == "tool/call" and rows[-1]["data"]["turn"] == len(PROMPTS)


def copy_when_open(home: Path, seconds: float = 20.0) -> bytes:
    """The log's bytes at the moment at which the last turn waits for its tool."""
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        for path in home.glob(f"sessions/*/{SESSION_ID}/session.v4.jsonl"):
            log = path.read_bytes()
            if log.endswith(b"\n") and is_open_at_a_tool(rows_of(log)):
                return log
        time.sleep(0.05)
    raise TimeoutError(f"no open tool call in the log after {seconds:.0f} s")


def record(base_url: str, cwd: Path, home: Path) -> bytes:
    """Run the turns in the runtime; the log as it stood while the last one was open."""
    # Not a dependency of the package: some 300 MB, needed only to make this file.
    from deepseek_harness import DeepSeekHarness  # noqa: PLC0415

    options = {"dsh_home": str(home), "cwd": str(cwd), "profile": "sdk-minimal"}
    with DeepSeekHarness(**options, base_url=base_url, api_key="unused") as harness:
        session = harness.start_session(SESSION_ID)
        for prompt in PROMPTS[:-1]:
            session.run(prompt)
        # The last turn is let to its end, so that no shell outlives the runtime.
        last = threading.Thread(target=session.run, args=(PROMPTS[-1],))
        last.start()
        try:
            return copy_when_open(home)
        finally:
            last.join()


def check(log: bytes) -> None:
    """Refuse a log that tells about this machine or has not the shape that is packaged."""
    text = log.decode()
    found = [word for word in FORBIDDEN if word in text]
    kinds = [row["data"]["reason"]["kind"] for row in rows_of(log) if row["type"] == "turn/end"]
    if found or kinds != ["completed"] * (len(PROMPTS) - 1):
        raise ValueError(f"not fit to be packaged: holds {found}, turns ended {kinds}")


@contextmanager
def serving(base_url: str | None) -> Iterator[str]:
    """The given server, or the scripted one for as long as it is needed."""
    if base_url is not None:
        yield base_url
        return
    with ScriptedModel(REPLIES) as model:
        threading.Thread(target=model.serve_forever, daemon=True).start()
        yield model.base_url
        model.shutdown()


def main() -> None:
    """Make the log and write it to the path given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--base-url", help="a running model server; default: the scripted one")
    parser.add_argument("--cwd", type=Path, default=Path("/srv/project"))
    options = parser.parse_args()
    options.cwd.mkdir(parents=True, exist_ok=True)
    (options.cwd / "notes.txt").write_text(NOTES)
    with tempfile.TemporaryDirectory() as home, serving(options.base_url) as base_url:
        log = record(base_url, options.cwd, Path(home))
    check(log)
    options.out.write_bytes(log)
    print(f"{options.out}: {len(rows_of(log)) - 1} rows, {len(log)} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
