"""For how long an attempt is silent: the heartbeat looks once in a while, and counts what is the child's."""

from __future__ import annotations

from workers.pulse import Pulse

GAP_S = 3.0


def a_pulse() -> Pulse:
    return Pulse(began_s=100.0, moved_s=100.0)


def looks(pulse: Pulse, *times_s: float, waits: bool = False) -> float:
    silent_s = 0.0
    for now_s in times_s:
        silent_s = pulse.look(now_s, waits=waits, gap_s=GAP_S)
    return silent_s


def test_silence_grows_from_the_last_sign_of_progress() -> None:
    assert looks(a_pulse(), 101, 102, 103) == 3


def test_a_sign_of_progress_ends_it() -> None:
    pulse = a_pulse()
    looks(pulse, 101, 102)
    pulse.moved_s = 102.5
    assert looks(pulse, 103) == 0.5


def test_a_wait_for_descendants_is_no_silence_and_what_follows_it_is() -> None:
    pulse = a_pulse()
    looks(pulse, 101, 102)
    assert looks(pulse, 103, 104, waits=True) == 0
    assert looks(pulse, 105, 106) == 2


def test_time_between_heartbeats_that_were_not_accepted_is_not_the_childs() -> None:
    pulse = a_pulse()
    looks(pulse, 101, 102)
    pulse.missed()
    assert looks(pulse, 160) == 2
    assert looks(pulse, 161) == 3


def test_a_gap_between_two_looks_is_not_the_childs() -> None:
    """The process was stopped, or its host slept."""
    pulse = a_pulse()
    looks(pulse, 101, 102)
    assert looks(pulse, 102 + GAP_S + 1) == 2
