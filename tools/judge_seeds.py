"""Let the real runtime judge every seed that we can make, and write what it said as a document.

    pip install -e '.[dev,harness]'
    DSH_TASKS_SAMPLE_SESSIONS=.. python -m tools.judge_seeds docs/seeds-judged.md

The tests of tests/harness run the same code; this runs all of it (some minutes) and keeps the table.
Exits with 1 where a verdict is not what it must be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from tests.harness import logs
from tests.harness.agreement import (
    WE_REFUSE,
    WE_TAKE,
    Offspring,
    Opinion,
    Reason,
    changed_children,
    changed_parents,
    offspring,
    opinions,
)
from tests.harness.judging import HEADLESS, Judged, cases_of, judged
from tests.harness.oracle import PROFILE, runtime_version

RANDOM_LOGS = 100
GOOD = "equal, twice"
HEADLESS_SHORT = "equal, once (see above)"

Lines = Iterator[str]


def main() -> None:
    """Judge everything and write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--every", type=int, default=1, help="try only one in so many changed files")
    options = parser.parse_args()
    by_source = {name: _judged(logs.of(name)) for name in logs.SOURCES if logs.is_named(name)}
    by_source["files that are zstd (profile sdk)"] = _judged(logs.zstd(), profile="sdk")
    random = _judged(logs.random(range(RANDOM_LOGS)))
    changed = logs.to_be_changed()
    with tempfile.TemporaryDirectory() as folder:
        read = opinions(changed_children(changed)[:: options.every], Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        born = offspring(changed_parents(changed)[:: options.every], Path(folder))
    text = "\n".join(document(by_source, random, read, born)) + "\n"
    options.out.write_text(text)
    faults = [*_faults(by_source, random), *_unexplained(read), *_unborn(born)]
    print("\n".join(faults) or "no faults")  # noqa: T201
    sys.exit(1 if faults else 0)


def _judged(found: dict, *, profile: str = PROFILE) -> list[Judged]:
    with tempfile.TemporaryDirectory() as folder:
        return judged(cases_of(found), Path(folder), profile=profile)


def _faults(by_source: dict[str, list[Judged]], random: list[Judged]) -> list[str]:
    every = [one for verdicts in (*by_source.values(), random) for one in verdicts]
    return [
        f"{one.case.name}: {one.case.refused or one.fault}"
        for one in every
        if one.case.refused is not None or (one.fault is not None and not one.is_headless)
    ]


def _unexplained(read: Iterable[Opinion]) -> list[str]:
    return [
        f"{one.mutant.kind}: ours {one.ours}, theirs {one.theirs}"
        for one in read
        if not one.agrees and one.reason is None
    ]


def _unborn(born: Iterable[Offspring]) -> list[str]:
    return [f"{one.name}: {one.fault}" for one in born if one.fault not in (None, HEADLESS)]


# -- the document ---------------------------------------------------------------------------------


def document(
    by_source: dict[str, list[Judged]], random: list[Judged], read: list[Opinion], born: list[Offspring]
) -> Lines:
    """All of it, line by line."""
    yield "# Seeds, judged by the real harness"
    yield ""
    yield "Written by `python -m tools.judge_seeds docs/seeds-judged.md`; `pytest -m harness` runs the same code."
    yield ""
    yield f"The judge is the runtime `deepseek-harness-runtime-bin` {runtime_version()}. A seed is right if"
    yield ""
    yield "* the runtime resumes the child's file and runs a prompt,"
    yield "* its model is then asked once, with the system text of the child's own runtime and exactly the"
    yield "  history that an independent fold of the same turns of the parent's whole log gives"
    yield "  (`tests/harness/expected.py`, which shares no code with the package), then the prompt, and nothing"
    yield "  of an open turn,"
    yield "* and a second process resumes the file again and asks with the same history and what was said since."
    yield ""
    yield f"*{GOOD}* says all of this. `tests/harness/test_the_judge.py` shows that the judge sees faults."
    yield ""
    yield from _totals(by_source, random)
    yield from _limits()
    for source, verdicts in by_source.items():
        yield from _table(source, verdicts)
    yield from _random(random)
    yield from _agreement(read)
    yield from _born(born)


def _totals(by_source: dict[str, list[Judged]], random: list[Judged]) -> Lines:
    yield "| logs | how many | log x window | empty | verbatim | folded | refused by us | equal, twice | equal, once |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    rows = {**by_source, f"random logs (numbers 0 to {RANDOM_LOGS - 1})": random}
    for name, verdicts in rows.items():
        yield _total(name, verdicts)
    yield _total("**all**", [one for verdicts in rows.values() for one in verdicts])
    yield ""


def _total(name: str, verdicts: Sequence[Judged]) -> str:
    forms = Counter(_form(one) for one in verdicts)
    count = len({(id(one.case.log)) for one in verdicts})
    equal = sum(_verdict(one) == GOOD for one in verdicts)
    once = sum(one.is_headless for one in verdicts)
    cells = [
        name,
        count,
        len(verdicts),
        *(forms[form] for form in ("empty", "verbatim", "folded", "refused")),
    ]
    return "| " + " | ".join(str(cell) for cell in (*cells, equal, once)) + " |"


def _limits() -> Lines:
    yield "*equal, once* is the one known limit: a log that holds no system message at all, which the runtime"
    yield "itself never writes. Its child runs; then the runtime puts its own system message behind the others"
    yield "and refuses to open the log again (`system/message requires a protected first surface head`). It does"
    yield "so with such a parent as well."
    yield ""
    yield "Images are judged with the SDK's default model, which is told of an image by the beginning of its"
    yield "digest, whether it was taken out since or not. A model that sees images needs their files"
    yield "(`<home>/attachments`), which no log holds: without them its turn ends in `error`. Signatures of"
    yield "reasoning are sent back to the model that gave them, and left out for any other; so does the runtime."
    yield ""


def _table(source: str, verdicts: list[Judged]) -> Lines:
    yield f"## {source[0].upper()}{source[1:]}"
    yield ""
    yield "| log | window | form | turns | events | verdict |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, of_log in groupby(verdicts, key=lambda one: one.case.log_name):
        yield from _lines_of(name, list(of_log))
    yield ""


def _lines_of(name: str, verdicts: list[Judged]) -> Lines:
    """One line for each form and verdict of a log."""
    kinds = dict.fromkeys((_form(one), _verdict(one)) for one in verdicts)
    for form, verdict in kinds:
        of_kind = [one for one in verdicts if (_form(one), _verdict(one)) == (form, verdict)]
        turns = _span(one.case.seed.turns for one in of_kind if one.case.seed is not None)
        events = _span(one.case.seed.event_count for one in of_kind if one.case.seed is not None)
        windows = _windows([one.case.window for one in of_kind])
        yield f"| {name} | {windows} | {form} | {turns} | {events} | {verdict} |"


def _form(one: Judged) -> str:
    return "refused" if one.case.seed is None else one.case.seed.form


def _verdict(one: Judged) -> str:
    if one.case.refused is not None:
        return one.case.refused
    return HEADLESS_SHORT if one.is_headless else one.fault or GOOD


def _span(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    if not found:
        return ""
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _windows(windows: Sequence[int | None]) -> str:
    """fork, and runs of N as ranges."""
    parts = ["fork"] if None in windows else []
    numbers = sorted(number for number in windows if number is not None)
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        last = f" to {members[-1]}" if len(members) > 1 else ""
        parts.append(f"N = {members[0]}{last}")
    return ", ".join(parts)


def _random(random: list[Judged]) -> Lines:
    yield "## Random logs"
    yield ""
    yield "Made up by the generator of `tests/laws`, each from a number; all windows of each."
    yield ""
    yield "| form | log x window | turns | events | verdict |"
    yield "| --- | --- | --- | --- | --- |"
    for (form, verdict), count in sorted(Counter((_form(one), _verdict(one)) for one in random).items()):
        seeds = [one.case.seed for one in random if (_form(one), _verdict(one)) == (form, verdict)]
        turns = _span(one.turns for one in seeds if one is not None)
        events = _span(one.event_count for one in seeds if one is not None)
        yield f"| {form} | {count} | {turns} | {events} | {verdict} |"
    yield ""


def _agreement(read: list[Opinion]) -> Lines:
    agreed = Counter(one.ours is None for one in read if one.agrees)
    differ = [one for one in read if not one.agrees]
    yield "## Our reader and the runtime on invalid files"
    yield ""
    yield f"The forks of {len(logs.TO_BE_CHANGED)} logs, each with one thing changed: a field taken out or given"
    yield "another value, a row dropped, doubled, swapped or moved (and all numbered anew), a row of an unknown"
    yield "type, near misses of the harness' own repairs, header, marker, bytes. Ours is `format.parse` and the"
    yield "strict `lifecycle.check`; theirs is resume and one prompt."
    yield ""
    yield f"Of {len(read)} files both refuse {agreed[False]} and take {agreed[True]}; they differ on {len(differ)}."
    yield ""
    yield from _differences(
        "We take, the runtime refuses", WE_TAKE, [one for one in differ if one.ours is None]
    )
    yield from _differences("We refuse, the runtime takes", WE_REFUSE, [one for one in differ if one.ours])


def _differences(title: str, reasons: Sequence[Reason], differ: Sequence[Opinion]) -> Lines:
    yield f"| {title} | files | such as |"
    yield "| --- | --- | --- |"
    for reason in reasons:
        kinds = [one.mutant.kind for one in differ if one.reason == reason]
        if kinds:
            yield f"| {reason.why} | {len(kinds)} | {'; '.join(f'`{kind}`' for kind in kinds[:2])} |"
    for one in differ:
        if one.reason is None:
            yield f"| **no reason known** | 1 | `{one.mutant.kind}`: {one.ours or one.theirs} |"
    yield ""


def _born(born: list[Offspring]) -> Lines:
    faults = Counter(one.fault for one in born)
    ended = [one for one in born if one.first.ending not in (None, "completed")]
    yield "## Seeds of changed parents"
    yield ""
    yield "The same changes made in the parents' logs. What our reader takes is forked and windowed (N = 1, and"
    yield "one turn less than there are); every such child must be resumed twice."
    yield ""
    yield f"{len(born)} different seeds came of it. {faults[None]} were resumed twice, {faults[HEADLESS]} once: their"
    yield f"parent's only system message was what was changed. In {len(ended)} the first turn ended in an error: they"
    yield "hold a block of a type that the runtime does not know, or an image without attachment, which it resumes"
    yield "and then cannot send."
    yield ""
    for one in born:
        if one.fault not in (None, HEADLESS):
            yield f"* {one.name}: {one.fault}"


if __name__ == "__main__":
    main()
