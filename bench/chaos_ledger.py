"""The ledger of a chaos run: every write that the server kept, read from its append-only file.

A record tells how it is; the file tells all that ever happened to it, over every restart. So an ending that
was written twice, a row written by an attempt that had lost its lease, a second notice: all are seen here,
whatever the record says in the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TERMINAL = {"completed", "failed", "killed"}


def commands(folder: Path) -> Iterator[list[bytes]]:
    """The commands of a server's append-only file, in their order."""
    files = sorted((folder / "appendonlydir").glob("*.incr.aof"), key=lambda p: int(p.name.split(".")[-3]))
    assert files, "the server kept no append-only file"
    for path in files:
        with path.open("rb") as source:
            while head := source.readline():
                if not head.startswith(b"*"):
                    continue
                parts = []
                for _ in range(int(head[1:])):
                    size = int(source.readline()[1:])
                    parts.append(source.read(size))
                    source.read(2)
                yield parts


@dataclass
class Life:
    """What happened to one task."""

    status: str = ""
    attempt: int = 0
    token: str = ""
    endings: list[str] = field(default_factory=list)
    tokens: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    settled_by: set[str] = field(default_factory=set)
    """Tokens whose settlement counted: the attempts that were effective."""
    notices: int = 0
    rows: int = 0
    faults: list[str] = field(default_factory=list)

    def change(self, fields: dict[str, str]) -> None:
        """One HSET of the record."""
        before, self.status = self.status, fields.get("status", self.status)
        if "attempt" in fields and "token" in fields:
            attempt = int(fields["attempt"])
            if before != "queued":
                self.faults.append(f"attempt {attempt} claimed a task that was {before}")
            if attempt != self.attempt + 1:
                self.faults.append(f"attempt {attempt} after {self.attempt}")
            self.attempt, self.token = attempt, fields["token"]
            self.tokens[attempt].add(self.token)
        if "settled_by" in fields:
            if fields["settled_by"] != self.token:
                self.faults.append("settled by a token that did not hold it")
            self.settled_by.add(fields["settled_by"])
        if "status" in fields and fields["status"] in TERMINAL:
            self.endings.append(fields["status"])
        elif before in TERMINAL and "status" in fields:
            self.faults.append(f"{fields['status']} after it was {before}")

    def row(self, entry: str) -> None:
        """One row of its log."""
        if entry != f"{self.rows + 1}-0":
            self.faults.append(f"row {entry} after {self.rows} rows")
        if self.status not in ("running", "stopping"):
            self.faults.append(f"a row while it was {self.status}")
        self.rows += 1


def read(folder: Path, prefix: str) -> dict[str, Life]:
    """The life of every task, up to its removal."""
    lives: dict[str, Life] = defaultdict(Life)
    task, log, inbox = (f"{prefix}{kind}:" for kind in ("task", "log", "inbox"))
    for name, *args in commands(folder):
        if not args:
            continue
        command, key = name.upper(), args[0].decode("utf-8", "replace")
        if command == b"HSET" and key.startswith(task):
            lives[key.removeprefix(task)].change(pairs(args[1:]))
        elif command == b"XADD" and key.startswith(log):
            lives[key.removeprefix(log)].row(args[1].decode())
        elif command == b"XADD" and key.startswith(inbox):
            lives[pairs(args[2:])["task"]].notices += 1
    return dict(lives)


def pairs(args: list[bytes]) -> dict[str, str]:
    """Fields and values; values are cut, for only short ones are looked at."""
    return {
        args[at].decode(): args[at + 1][:200].decode("utf-8", "replace") for at in range(0, len(args) - 1, 2)
    }


def faults_of(lives: dict[str, Life]) -> Iterator[str]:
    """Everything in the ledger that no life may have."""
    for one, life in lives.items():
        yield from (f"{one}: {fault}" for fault in life.faults)
        if len(life.endings) != 1:
            yield f"{one}: ended {len(life.endings)} times: {life.endings}"
        if len(life.settled_by) > 1:
            yield f"{one}: {len(life.settled_by)} attempts were effective"
        if life.notices > 1:
            yield f"{one}: {life.notices} notices"
        twice = [number for number, tokens in life.tokens.items() if len(tokens) > 1]
        if twice:
            yield f"{one}: attempts {twice} were held by two tokens"


def attempts_of(lives: dict[str, Life]) -> dict[int, int]:
    """How many tasks took so many attempts."""
    return dict(sorted(Counter(life.attempt for life in lives.values()).items()))
