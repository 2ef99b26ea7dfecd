"""The logs that are judged: each name says what stands in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from random import Random

from dsh_tasks import format as log_format
from dsh_tasks.session import Session
from tests.harness.built import LOGS
from tests.laws.test_seed_laws import Author

WRITTEN = Path(__file__).parent.parent / "logs"
"""Logs that the runtime wrote (tools/make_sample_logs.py)."""
SAMPLES = "DSH_TASKS_SAMPLE_SESSIONS"
"""Names a folder of session files that are judged too."""
OTHERS = "the harness' own samples"


def packaged() -> dict[str, Session]:
    """The log that comes with the package."""
    return {"packaged": log_format.parse((files("dsh_tasks.data") / "parent.session.v4.jsonl").read_bytes())}


def written() -> dict[str, Session]:
    """What the runtime wrote, each named for its feature."""
    return {path.name.split(".")[0]: log_format.read(path) for path in sorted(WRITTEN.glob("*.jsonl*"))}


def zstd() -> dict[str, Session]:
    """What the profile `sdk` wrote (its files are zstd), and the packaged log beside it."""
    sdk = {name: log for name, log in written().items() if name.startswith("sdk-")}
    assert sdk, f"{WRITTEN} holds no log of the profile sdk"
    return packaged() | sdk


def samples() -> dict[str, Session]:
    """The files of the folder that the environment names."""
    root = Path(os.environ[SAMPLES])
    return {str(path.relative_to(root)): log_format.read(path) for path in sorted(root.rglob("*.jsonl"))}


def built() -> dict[str, Session]:
    """Logs built row by row."""
    return {name: make() for name, make in LOGS.items()}


def random(numbers: Iterable[int]) -> dict[str, Session]:
    """Logs made up by the generator of tests/laws, one for each number."""
    return {f"random log {number}": _made_up(number) for number in numbers}


def _made_up(number: int) -> Session:
    dice = Random(number)
    return Author(dice, bookkeeping=dice.random() < 0.8, tame=dice.random() < 0.3).log(dice.randint(0, 6))


SOURCES: dict[str, Callable[[], dict[str, Session]]] = {
    "the packaged log": packaged,
    "logs that the runtime wrote": written,
    "logs built row by row": built,
    OTHERS: samples,
}
"""Every log that is judged, by where it is from; random ones aside."""


def is_named(source: str) -> bool:
    """Only the folder of samples may be left out, and only by not naming it at all."""
    return source != OTHERS or SAMPLES in os.environ


def of(source: str) -> dict[str, Session]:
    """The logs of a source. AssertionError where it has none: an empty folder must not pass as judged."""
    found = SOURCES[source]()
    assert found, f"{source}: not one log" + (f" in {os.environ[SAMPLES]!r}" if source == OTHERS else "")
    return found


TO_BE_CHANGED = (
    "interrupted",
    "compacted",
    "retried",
    "tool-error",
    "image",
    "sdk-pruned",
    "commands and titles",
    "developer messages",
    "calls of a tool's program",
    "images, some taken out",
    "rows of tomorrow",
    "results rewritten",
    "steered within a turn",
    "model retried",
    "plain end of an inherited part",
    "system prompt changes",
    "compaction between turns",
    "repairs of a fork",
)
"""Logs that together hold every type of row that we can make: what is changed in them, one thing at a time."""


def to_be_changed() -> dict[str, Session]:
    """The logs of these names."""
    known = written() | built()
    return {name: known[name] for name in TO_BE_CHANGED}
