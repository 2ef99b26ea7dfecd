"""Events of a worker go out in groups, and none waits for a flush that has passed."""

from __future__ import annotations

from collections.abc import Callable

from workers.events import LATEST_S, Batch


class FakeHub:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        self.later.append((delay, callback))

    def turn(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class Sender:
    """A dispatcher's buffer."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.groups: list[list[int]] = []
        self.hub = FakeHub()
        self.batch = Batch(self.hub, self.flush)

    def event(self, number: int) -> None:
        self.waiting.append(number)
        self.batch.wanted()

    def flush(self) -> None:
        self.groups.append(list(self.waiting))
        self.waiting.clear()


def test_what_comes_within_the_time_is_one_group() -> None:
    sender = Sender()
    for number in range(5):
        sender.event(number)
        sender.hub.turn()
    ((delay_s, flush),) = sender.hub.later
    assert (delay_s, sender.groups) == (LATEST_S, [])
    flush()
    assert sender.groups == [[0, 1, 2, 3, 4]]


def test_what_comes_while_a_group_is_sent_has_a_flush_of_its_own() -> None:
    sender = Sender()
    publish = sender.flush

    def busy() -> None:
        publish()
        if len(sender.groups) == 1:
            sender.event(2)

    sender.batch = Batch(sender.hub, busy)
    sender.event(1)
    sender.hub.turn()
    sender.hub.later.pop()[1]()
    sender.hub.turn()
    sender.hub.later.pop()[1]()
    assert sender.groups == [[1], [2]]
