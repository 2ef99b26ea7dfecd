"""Laws of the maker: what it chooses is what going through the rows again gives, whenever it is asked."""

from __future__ import annotations

from random import Random

from hypothesis import event, given
from hypothesis import strategies as st

from dsh_tasks import seed
from dsh_tasks.seed import SeedMaker, taken
from dsh_tasks.session import Session
from tests.laws.test_seed_laws import LAW, logs


def up_to(log: Session, turns: int) -> Session:
    """The log as it was when its `turns`-th turn had just ended."""
    end = log.completed_turns()[turns - 1].end_seq
    assert end is not None
    return Session(log.header, log.events[: end + 1])


@LAW
@given(logs(), st.integers(1, 6))
def test_chosen_chunks_are_those_of_the_rows_gone_through_again(log: Session, turns: int) -> None:
    maker = taken(log)
    kept = list(maker._segments)[-turns:]
    chosen = maker._chosen(kept) if kept else None
    event(f"chosen: {chosen is not None}")
    if chosen is not None:
        assert chosen == maker._rewritten(kept)


@LAW
@given(logs(), st.integers(0, 2**32))
def test_a_log_that_grows_gives_at_each_time_the_seeds_that_it_would_give_anew(
    log: Session, dice: int
) -> None:
    """Asked in between or not: later seeds are the same."""
    pick = Random(dice)
    maker = SeedMaker()
    had = 0
    for turns in range(1, len(log.completed_turns()) + 1):
        part = up_to(log, turns)
        taken(part, maker, since=had)
        had = len(part.events)
        for window in pick.sample(range(turns + 2), min(2, turns)):
            assert maker.seed(window) == seed.window(part, window)
        assert pick.random() < 0.5 or maker.seed() == seed.cut(part)


@LAW
@given(logs(), st.integers(1, 6))
def test_a_maker_that_forgets_gives_the_windows_that_it_was_made_for(log: Session, keep: int) -> None:
    maker = taken(log, SeedMaker(keep=keep))
    for turns in range(keep + 1):
        assert maker.seed(turns) == seed.window(log, turns)


@LAW
@given(logs(tame=True))
def test_rows_of_the_open_turn_change_no_seed(log: Session) -> None:
    maker = taken(log)
    before = [maker.seed(turns) for turns in range(maker.turns + 1)]
    other = taken(log)
    for row in log.events[log.end_of_completed() :]:
        other.add(row)
    assert [other.seed(turns) for turns in range(other.turns + 1)] == before
