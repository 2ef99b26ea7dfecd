"""Our reader and the runtime on the same files: where one accepts and the other refuses, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from dsh_tasks import format as log_format
from dsh_tasks import seed
from dsh_tasks.errors import SeedRefused, SessionRefused
from dsh_tasks.lifecycle import check
from dsh_tasks.session import Session
from tests.harness.judging import Case
from tests.harness.mutations import Mutant, Row, mutants
from tests.harness.oracle import Oracle, Verdict

SESSION_ID, CWD = "@ID@", "/@CWD@"
"""Stand in the header of a mutant for what its folder decides."""


@dataclass(frozen=True)
class Reason:
    """Why the two may differ: a kind of mutant, or a sentence of the one that refuses."""

    pattern: str
    why: str


WE_TAKE = (
    Reason("invalid persisted inbox splice", "a seed leaves such rows out: no child ever has them"),
    Reason(
        "does not match header id|and cwd identify", "which folder a file lies in, the runtime alone knows"
    ),
)
"""Files that we take and the runtime refuses."""

WE_REFUSE = (
    Reason(r"as a float$", "a whole number written as 4.0 is one to JavaScript; the runtime never writes it"),
    Reason("not a block|a block of type", "a block without shape says nothing; the runtime passes it on"),
    Reason("does not say how it ended", "a turn's reason is part of what a child is told"),
    Reason(
        "data is not a JSON object", "the runtime does not look at rows of its plugins; its own are objects"
    ),
    Reason("an error stands beside", "an error that is no object; the runtime's are"),
    Reason("unknown type cannot point", "what an unknown row points at could not be numbered anew"),
    Reason("a row needs a type", "an empty type names nothing"),
    Reason("tools are not a list", "the runtime resumes it, and its next turn ends in an error"),
    Reason(
        "usage is not an object|stream is not a list of objects", "it would be read by whoever counts tokens"
    ),
    Reason("inbox change does not say", "a null where a number is; the runtime leaves the key out"),
    Reason("parentSession is not text", "an empty name names nobody"),
    Reason("marker too many", "two markers side by side; the runtime writes one"),
    Reason("number without bounds", "1e999 is infinite to JavaScript and has no JSON"),
    Reason("not UTF-8", "the runtime reads such bytes as replacement characters"),
    Reason("nested too deep", "deeper than 200 is not read, whoever wrote it"),
    Reason("an empty line at the end", "the runtime ends each row, and nothing more"),
)
"""Files that we refuse and the runtime takes."""


@dataclass(frozen=True)
class Opinion:
    """What both said of one mutant; None is acceptance."""

    mutant: Mutant
    ours: str | None
    theirs: str | None

    @property
    def agrees(self) -> bool:
        return (self.ours is None) == (self.theirs is None)

    @property
    def reason(self) -> Reason | None:
        """The stated reason of a disagreement; None where there is none."""
        reasons = WE_TAKE if self.ours is None else WE_REFUSE
        texts = (self.mutant.kind, self.ours or self.theirs or "")
        return next((one for one in reasons if any(re.search(one.pattern, text) for text in texts)), None)


def changed_children(logs: Mapping[str, Session]) -> list[Mutant]:
    """The fork of each log as a file, and each thing changed in it."""
    return list(mutants({name: _lines(_child(name, log)) for name, log in logs.items()}))


def _child(name: str, log: Session) -> Session:
    child = Case(name, log, None, seed.cut(log)).child()
    return changed(child, header=changed(child.header, id=SESSION_ID, cwd=CWD))


def _lines(log: Session) -> list[Row]:
    return [json.loads(line) for line in log_format.write(log).splitlines()]


def ours_of(data: bytes) -> str | None:
    """Our refusal of a file that is to be written for the harness."""
    try:
        check(log_format.parse(data).events, strict=True)
    except SessionRefused as error:
        return str(error)
    return None


def opinions(known: Sequence[Mutant], folder: Path) -> list[Opinion]:
    """Let both read each mutant."""
    with Oracle(folder) as oracle:
        data = {f"m{place}": _placed(one.data, f"m{place}", oracle.cwd) for place, one in enumerate(known)}
        verdicts = oracle.judge(data)
    return [
        Opinion(mutant, ours_of(data[name]), verdicts[name].refusal)
        for name, mutant in zip(data, known, strict=True)
    ]


def _placed(data: bytes, name: str, cwd: Path) -> bytes:
    return data.replace(f'"{SESSION_ID}"'.encode(), f'"{name}"'.encode()).replace(
        f'"{CWD}"'.encode(), f'"{cwd}"'.encode()
    )


# -- parents with one thing changed ---------------------------------------------------------------


def changed_parents(logs: Mapping[str, Session]) -> list[Mutant]:
    """Each log as a file, and each thing changed in it."""
    return list(mutants({name: _lines(log) for name, log in logs.items()}))


@dataclass(frozen=True)
class Offspring:
    """A seed of a parent that our reader took with one thing changed, and the runtime's verdicts."""

    name: str
    first: Verdict
    second: Verdict | None

    @property
    def fault(self) -> str | None:
        """Why the child could not be resumed twice; what the model was asked is not looked at."""
        if self.first.refusal is not None:
            return self.first.refusal
        return self.second and self.second.refusal and f"second resume: {self.second.refusal}"


def offspring(parents: Iterable[Mutant], folder: Path) -> list[Offspring]:
    """fork and two windows of each parent that we take, resumed twice. Every other parent is refused."""
    with Oracle(folder) as oracle:
        names: dict[str, str] = {}
        files: dict[str, bytes] = {}
        for case in _cases(parents):
            assert case.seed is not None
            if case.seed.digest not in names:
                names[case.seed.digest] = name = f"s{len(names)}"
                files[name] = oracle.file_of(case.child(), name)
                names[name] = case.name
        first = oracle.judge(files)
        oracle.restart()
        second = oracle.judge([name for name in files if first[name].is_accepted])
    return [Offspring(names[name], first[name], second.get(name)) for name in files]


def _cases(parents: Iterable[Mutant]) -> Iterable[Case]:
    for parent in parents:
        try:
            log = log_format.parse(parent.data)
        except SessionRefused:
            continue
        turns = len(log.completed_turns())
        for window in (None, 1, max(turns - 1, 0)):
            try:
                made = seed.cut(log) if window is None else seed.window(log, window)
            except SeedRefused:
                continue
            yield Case(f"{parent.base}: {parent.kind}", log, window, made)
