"""Logs times windows before the runtime: what each seed is, and what became of it, twice.

One code path for the tests and for tools/judge_seeds.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsh_tasks import seed
from dsh_tasks.errors import SeedRefused
from dsh_tasks.seed import Seed
from dsh_tasks.session import Session
from tests.harness.expected import CONTEXTS, UNKNOWN, History, history_in, history_of, merged
from tests.harness.oracle import MODEL, PROFILE, Oracle, Verdict, prompt_of, reply_to

FORK = None
"""The window of a fork: every completed turn."""


@dataclass(frozen=True)
class Case:
    """One log, and how many of its turns the child is to have."""

    log_name: str
    log: Session
    window: int | None
    seed: Seed | None
    """None where the log gives no seed."""
    refused: str | None = None
    """Why not."""

    @property
    def name(self) -> str:
        return f"{self.log_name}, {'fork' if self.window is None else f'N={self.window}'}"

    def child(self) -> Session:
        """The child's log as it stands before its first prompt."""
        assert self.seed is not None
        header = seed.child_header(
            parent_session=self.log.header.id,
            child_id="child",
            created_at_ms=1_796_000_000_000,
            depth=self.log.header.delegation_depth + 1,
            seeded=bool(self.seed.events),
        )
        return seed.child_session(header, self.seed)


HEADLESS = "second resume: system/message requires a protected first surface head"


@dataclass(frozen=True)
class Judged:
    """A case and what the runtime made of it."""

    case: Case
    fault: str | None
    """What was not as it must be; None where all was."""

    @property
    def is_headless(self) -> bool:
        """The one known limit: a log without any system message, which only a script can write.

        The runtime puts its own behind other messages and then refuses to open the log again; it
        does so with the parent as well.
        """
        has_system = any(event.type == "system/message" for event in self.case.log.events)
        return self.fault == HEADLESS and not has_system


def windows_of(log: Session) -> list[int | None]:
    """fork, and every number of turns from none to one more than there are."""
    return [FORK, *range(len(log.completed_turns()) + 2)]


def cases_of(logs: Mapping[str, Session]) -> Iterator[Case]:
    """Every log under every window."""
    for name, log in logs.items():
        for window in windows_of(log):
            try:
                made = seed.cut(log) if window is None else seed.window(log, window)
            except SeedRefused as error:
                yield Case(name, log, window, None, str(error))
            else:
                yield Case(name, log, window, made)


def judged(
    cases: Iterable[Case], folder: Path, *, profile: str = PROFILE, model: str = MODEL
) -> list[Judged]:
    """Let one runtime resume and prompt every seed, and a second one do it again.

    Seeds that are the same bytes for the same child are shown once.
    """
    known = list(cases)
    names: dict[tuple[str, str], str] = {}
    files: dict[str, bytes] = {}
    with Oracle(folder, profile=profile, model=model) as oracle:
        for case in known:
            if case.seed is not None and (case.log_name, case.seed.digest) not in names:
                name = names[case.log_name, case.seed.digest] = f"child-{len(names)}"
                files[name] = oracle.file_of(case.child(), name)
        first = oracle.judge(files)
        oracle.restart()
        second = oracle.judge([name for name in files if first[name].is_accepted])
    systems = {str(request.get("system")) for verdict in first.values() for request in verdict.requests}
    # A child has the system text of its own runtime, whatever its parent's was.
    assert len(systems) <= 1, systems
    return [_judged(case, names, first, second) for case in known]


def _judged(
    case: Case,
    names: Mapping[tuple[str, str], str],
    first: Mapping[str, Verdict],
    second: Mapping[str, Verdict],
) -> Judged:
    if case.seed is None:
        return Judged(case, None)
    name = names[case.log_name, case.seed.digest]
    history = history_of([event.row() for event in case.log.events], case.window)
    fault = fault_of(history, first[name], prompt_of(name, 1))
    if fault is not None:
        return Judged(case, fault)
    said = [(prompt_of(name, 1), reply_to(prompt_of(name, 1)))]
    fault = fault_of(history, second[name], prompt_of(name, 2), said)
    return Judged(case, fault and f"second resume: {fault}")


def fault_of(
    history: History, verdict: Verdict, prompt: str, said: Sequence[tuple[str, str]] = ()
) -> str | None:
    """What is not as it must be: asked once, with this history, what was `said` since, and the prompt."""
    if verdict.refusal is not None:
        return verdict.refusal
    if verdict.ending != "completed":
        return f"the turn ended {verdict.ending}"
    if len(verdict.requests) != 1:
        return f"{len(verdict.requests)} requests in place of one"
    since = [one for ask, answer in said for one in (("user", ask), ("assistant", answer))]
    wanted = merged(
        [*history, *((role, [("text", text)]) for role, text in since), ("user", [("text", prompt)])]
    )
    got = history_in(verdict.requests[0])
    return _difference(wanted, _without_context(got, since_prompt_of=[ask for ask, _ in said] + [prompt]))


def _without_context(got: History, since_prompt_of: Sequence[str]) -> History:
    """The history without what the runtime itself says beside the child's own prompts."""
    cleaned: History = []
    for role, blocks in got:
        own = [
            place
            for place, block in enumerate(blocks)
            if block[:1] == ("text",) and block[1] in since_prompt_of
        ]
        kept = [
            block
            for place, block in enumerate(blocks)
            if not (own and place > own[0] and block[0] == "text" and block[1].startswith(CONTEXTS))
        ]
        cleaned.append((role, kept))
    return cleaned


def _difference(wanted: History, got: History) -> str | None:
    if alike(wanted, got):
        return None
    for place, (want, have) in enumerate(zip(wanted, got, strict=False)):
        if not alike(want, have):
            return f"message {place}: {_short(have)} in place of {_short(want)}"
    return f"{len(got)} messages in place of {len(wanted)}"


def alike(want: Any, have: Any) -> bool:
    """Equal, where any words may say that an outcome is unknown."""
    if want == UNKNOWN:
        return isinstance(have, tuple) and have[:1] == ("text",) and "unknown" in have[1]
    if isinstance(want, list | tuple) and isinstance(have, list | tuple):
        return len(want) == len(have) and all(alike(a, b) for a, b in zip(want, have, strict=True))
    return bool(want == have)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}.."
