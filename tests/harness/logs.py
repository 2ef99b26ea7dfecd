"""The logs that are judged: each name says what stands in it."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from dsh_tasks import format as log_format
from dsh_tasks.session import Session

WRITTEN = Path(__file__).parent.parent / "logs"
"""Logs that the runtime wrote (tools/make_sample_logs.py)."""
SAMPLES = "DSH_TASKS_SAMPLE_SESSIONS"
"""Names a folder of session files that are judged too."""


def packaged() -> dict[str, Session]:
    """The log that comes with the package."""
    return {"packaged": log_format.parse((files("dsh_tasks.data") / "parent.session.v4.jsonl").read_bytes())}


def written() -> dict[str, Session]:
    """What the runtime wrote, each named for its feature."""
    return {path.name.split(".")[0]: log_format.read(path) for path in sorted(WRITTEN.glob("*.jsonl*"))}


def samples() -> dict[str, Session]:
    """The files of the folder that the environment names; none without it."""
    folder = os.environ.get(SAMPLES)
    if not folder:
        return {}
    root = Path(folder)
    return {str(path.relative_to(root)): log_format.read(path) for path in sorted(root.rglob("*.jsonl"))}
