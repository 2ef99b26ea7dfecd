"""Scripts: loads lua/, one script per change of state, known to the server by the hash of its text."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

NAMES = (
    "ack",
    "append",
    "budget",
    "claim",
    "due",
    "forget",
    "hand_back",
    "heartbeat",
    "hints",
    "hook_claim",
    "hook_done",
    "kill",
    "look",
    "mark",
    "permit",
    "permit_end",
    "permit_keep",
    "promote",
    "read",
    "reap",
    "settle",
    "speak",
    "stall",
    "submit",
    "take",
    "upload",
)

Arg = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its name, full text (the shared part before it) and SHA-1 as EVALSHA wants it."""

    name: str
    text: str
    sha: str

    def call(self, keys: Sequence[str], args: Sequence[Arg]) -> tuple[Any, ...]:
        """The EVALSHA command that runs it."""
        return "EVALSHA", self.sha, len(keys), *keys, *args


@cache
def load(name: str) -> Script:
    """Read `lua/<name>.lua`; its `#!lua` line stays first, `lib.lua` comes next."""
    folder = files("dsh_tasks.store") / "lua"
    lib = (folder / "lib.lua").read_text("utf-8")
    body = (folder / f"{name}.lua").read_text("utf-8")
    shebang = ""
    if body.startswith("#!"):
        shebang, body = body.split("\n", 1)
        shebang += "\n"
    text = f"{shebang}{lib}\n{body}"
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha)


@cache
def load_plain(name: str) -> Script:
    """The script without its `#!lua` line, for servers that do not know flags (fakeredis)."""
    text = load(name).text
    if text.startswith("#!"):
        text = text.split("\n", 1)[1]
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha)
