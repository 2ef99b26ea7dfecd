"""Laws of seeds, over logs that are made up: any mix of turns, tools, compactions, waiting messages.

Hypothesis picks a length and a number to throw dice by: left to pick each row it makes mostly empty logs.
"""

from __future__ import annotations

from random import Random

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from dsh_tasks import format as log_format
from dsh_tasks import seed, surface
from dsh_tasks.lifecycle import check
from dsh_tasks.rows import references
from dsh_tasks.session import Session
from tests.factories import LogWriter, reasoning, text

LAW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
REASONS = ("completed", "aborted", "error", "interrupted", "max-tokens", "one-of-tomorrow")


class Author:
    """Writes a log as the dice fall."""

    def __init__(self, dice: Random, *, bookkeeping: bool, tame: bool = False, images: bool = True) -> None:
        self.dice = dice
        self.tame = tame
        """No message is left waiting, no call without a result, and few rows reach out of their turn."""
        self.images = images
        self.writer = LogWriter(bookkeeping=bookkeeping)

    def chance(self, percent: int) -> bool:
        return self.dice.randrange(100) < percent

    def strays(self, percent: int) -> bool:
        return self.dice.randrange(100) < (percent // 10 if self.tame else percent)

    def few(self, most: int) -> int:
        return self.dice.randint(0, most)

    def log(self, turns: int) -> Session:
        marker = self.few(turns) if self.chance(25) else 0
        for number in range(1, turns + 1):
            self.turn()
            if number == marker:
                self.writer.add("session/end-seed", {"inherited": True})
            elif self.chance(10):
                self.writer.add("session/end-seed", {})
            if self.chance(15):
                self.writer.add("permission/preset", {"preset": "ask"})
            if self.strays(15) and len(self.writer.live) > 2:
                self.compact(between=True)
        if self.chance(50):
            self.writer.open_turn("open turn")
            self.answer()
        return self.writer.session

    def turn(self) -> None:
        writer = self.writer
        if self.chance(10):
            # Aborted before it did anything.
            writer.turn += 1
            writer.step = 0
            writer.add("turn/start", {"turn": writer.turn})
            writer.close_turn("aborted")
            return
        writer.open_turn(f"question {writer.turn + 1}", images=self.few(2) if self.images else 0)
        for _ in range(1 + self.few(2)):
            if self.strays(20):
                self.compact()
            self.answer()
            if self.chance(30):
                writer.notice(f"notice {len(writer.rows)}")
            if self.strays(15):
                self.offload()
            if self.strays(10):
                self.new_system()
            if not self.tame and self.chance(15):
                writer.inbox("next-step", [writer.user_message("waits")])
            if self.chance(10):
                cited = [row["seq"] for row in writer.rows if self.is_human(row)]
                picked = self.dice.sample(cited, min(len(cited), 1 + self.few(2)))
                writer.add("session/title", {"title": "t", "messageSeqs": picked, "source": {"kind": "llm"}})
            if self.chance(60):
                writer.open_step()
        writer.close_turn(self.dice.choice(REASONS))

    def is_human(self, row: dict) -> bool:
        return row["type"] == "user/message" and row["data"]["source"]["kind"] == "user"

    def answer(self) -> None:
        writer = self.writer
        if any(
            row["type"] == "assistant/message"
            and row["data"]["step"] == writer.step
            and row["data"]["turn"] == writer.turn
            for row in writer.rows[-12:]
        ):
            writer.open_step()
        blocks = writer.calls(self.few(3))
        words = [text(f"answer {len(writer.rows)}")] if self.chance(80) else []
        thoughts = [reasoning("hm")] if self.chance(30) else []
        writer.assistant(*thoughts, *words, *blocks)
        begun = [writer.call(block) for block in blocks]
        for block, call_seq in zip(blocks, begun, strict=True):
            if self.tame or not self.chance(4):
                writer.result(call_seq, block, f"result of {block['id']}", is_error=self.chance(20))

    def compact(self, *, between: bool = False) -> None:
        writer = self.writer
        nodes = writer.live[1:] if writer.rows[writer.live[0]]["type"] == "system/message" else writer.live
        nodes = [seq for seq in nodes if seq < len(writer.rows)]
        if not nodes:
            return
        first, last = sorted((self.few(len(nodes) - 1), self.few(len(nodes) - 1)))
        if self.tame:
            # As the harness does it: whole exchanges, no call without its result.
            kinds = [writer.rows[seq]["type"] for seq in nodes]
            first = kinds.index("user/message")
            last = next((at - 1 for at in range(last, first, -1) if kinds[at] == "user/message"), first)
        turn = writer.turn
        if between:
            writer.turn = None  # type: ignore[assignment]
        writer.compact(f"summary {len(writer.rows)}", first=nodes[first], last=nodes[last])
        writer.turn = turn

    def offload(self) -> None:
        writer = self.writer
        out = {
            (one["seq"], index)
            for row in writer.rows
            if row["type"] == "image/offload"
            for one in row["data"]["targets"]
            for index in one["imageIndexes"]
        }
        for seq in writer.live:
            row = writer.rows[seq]
            images = (
                [b for b in row["data"].get("content", ()) if b["type"] == "image"]
                if row["type"] == "user/message"
                else []
            )
            left = [index for index in range(len(images)) if (seq, index) not in out]
            if left:
                writer.add("image/offload", {"targets": [{"seq": seq, "imageIndexes": left[:1]}]})
                return

    def new_system(self) -> None:
        writer = self.writer
        head = writer.live[0]
        if writer.rows[head]["type"] != "system/message" or not writer.step:
            return
        seq = writer.system(f"new rules {len(writer.rows)}")
        writer.live.pop()
        writer.rows[seq] |= {
            "surfaceOp": {"op": "replace", "startSeq": head, "endSeq": head},
            "sourceEventSeqs": [head],
        }
        writer.live[0] = seq


@st.composite
def logs(draw: st.DrawFn, *, tame: bool = False) -> Session:
    turns, dice = draw(st.integers(0, 6)), Random(draw(st.integers(0, 2**32)))
    return Author(dice, bookkeeping=dice.random() < 0.7, tame=tame).log(turns)


def kept_from(log: Session, turns: int) -> int:
    """First row of the last `turns` completed turns, the rows since the turn before included."""
    ended = log.completed_turns()
    if turns >= len(ended):
        return 0
    return (ended[-turns - 1].end_seq or 0) + 1 if turns else len(log.events)


@LAW
@given(logs())
def test_the_logs_made_up_here_are_logs(log: Session) -> None:
    assert log_format.parse(log_format.write(log)) == log


@LAW
@given(logs(), st.integers(0, 6))
def test_a_window_shows_what_the_fold_of_the_whole_log_shows_of_its_turns(log: Session, turns: int) -> None:
    made = seed.window(log, turns)
    event(made.form)
    prefix = log.events[: log.end_of_completed()]
    first = kept_from(Session(log.header, prefix), turns)
    nodes = [node for node in surface.fold(prefix) if node.seq >= first]
    assert surface.messages(made.events) == surface.shown(nodes, completed_before=len(prefix))


@LAW
@given(logs(), st.integers(0, 6))
def test_every_seed_is_a_log_that_the_strict_reader_accepts_as_a_child(log: Session, turns: int) -> None:
    made = seed.window(log, turns)
    assert [row.seq for row in made.events] == list(range(made.event_count))
    check(made.events, strict=True)
    header = seed.child_header(
        parent_session=log.header.id, child_id="c", created_at_ms=1, depth=1, seeded=bool(made.events)
    )
    child = seed.child_session(header, made)
    assert log_format.parse(log_format.write(child)) == child
    assert [turn.number for turn in child.turns()] == list(range(1, made.turns + 1))
    assert all(turn.is_completed for turn in child.turns())


@LAW
@given(logs(), st.integers(0, 3))
def test_all_turns_and_more_are_the_fork(log: Session, more: int) -> None:
    whole = seed.cut(log)
    assert seed.window(log, len(log.completed_turns()) + more) == whole
    assert whole.turns == len(log.completed_turns())
    assert seed.cut(Session(log.header, log.events[: log.end_of_completed()])) == whole


@LAW
@given(logs(), st.integers(0, 6))
def test_a_seed_decodes_to_what_it_was_made_from_whoever_decodes_it(log: Session, turns: int) -> None:
    made = seed.window(log, turns)
    stored = made.blobs
    assert seed.decode(made.manifest, stored.__getitem__) == made.events
    assert seed.window(log_format.parse(log_format.write(log)), turns) == made


@LAW
@given(logs(tame=True))
def test_a_longer_log_shares_the_chunks_of_the_shorter(log: Session) -> None:
    ended = log.completed_turns()
    whole = seed.cut(log)
    assert whole.form == ("verbatim" if ended else "empty")
    event(f"{len(ended)} turns")
    for turns in range(1, len(ended)):
        shorter = seed.cut(Session(log.header, log.events[: (ended[turns - 1].end_seq or 0) + 1]))
        assert whole.chunks[:turns] == shorter.chunks


@LAW
@given(logs(tame=True), st.integers(1, 6))
def test_a_window_that_nothing_leaves_shares_the_chunks_of_the_fork(log: Session, turns: int) -> None:
    whole, made = seed.cut(log), seed.window(log, turns)
    rows = whole.events[sum(chunk.rows for chunk in whole.chunks[: -made.turns]) :] if made.turns else ()
    first = rows[0].seq if rows else 0
    if all(ref >= first for row in rows for ref in references(row)):
        event("nothing leaves")
        assert made.form == ("verbatim" if made.turns else "empty")
        assert made.chunks == whole.chunks[len(whole.chunks) - made.turns :]


@LAW
@given(logs(), st.integers(0, 6), st.integers(0, 6))
def test_a_window_of_a_window_is_the_smaller_window_as_a_model_sees_it(
    log: Session, outer: int, inner: int
) -> None:
    made = seed.window(log, outer)
    again = seed.window(Session(log.header, made.events), inner)
    straight = seed.window(log, min(outer, inner))
    if "folded" in (made.form, straight.form):
        # A fold gives a summary to the turn whose messages it stands before.
        return
    assert surface.messages(again.events) == surface.messages(straight.events)
