"""Our reader and the runtime on the same files: where one accepts and the other refuses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsh_tasks import format as log_format
from dsh_tasks.errors import SessionRefused
from dsh_tasks.lifecycle import check
from tests.harness.mutations import Mutant
from tests.harness.oracle import Oracle


@dataclass(frozen=True)
class Opinion:
    """What both said of one mutant; None is acceptance."""

    mutant: Mutant
    ours: str | None
    theirs: str | None

    @property
    def agrees(self) -> bool:
        return (self.ours is None) == (self.theirs is None)


def ours_of(data: bytes) -> str | None:
    """Our refusal of a file that is to be written for the harness."""
    try:
        check(log_format.parse(data).events, strict=True)
    except SessionRefused as error:
        return str(error)
    return None


def opinions(mutants: Iterable[Mutant], oracle: Oracle, names: str) -> list[Opinion]:
    """Let both read each mutant. Its header's id is given by `file_named`, so the file fits its folder."""
    known: Sequence[Mutant] = list(mutants)
    files = {f"{names}-{place}": mutant for place, mutant in enumerate(known)}
    data = {name: _named(mutant.data, name, oracle.cwd) for name, mutant in files.items()}
    verdicts = oracle.judge(data)
    return [Opinion(mutant, ours_of(data[name]), verdicts[name].refusal) for name, mutant in files.items()]


def _named(data: bytes, name: str, cwd: Path) -> bytes:
    return data.replace(b'"@ID@"', f'"{name}"'.encode()).replace(b'"/@CWD@"', f'"{cwd}"'.encode())
