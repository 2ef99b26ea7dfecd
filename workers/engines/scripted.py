"""ScriptedEngine and NoopEngine: engines without a model, for tests, demonstrations and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from dsh_tasks.task import Cause, Outcome, Status, Usage
from workers.engines.base import Run
from workers.engines.transcript import Inherited, RouteName, Transcript, own_text

SCRIPTED = RouteName("scripted", "scripted")


def transcript_of(run: Run) -> Transcript:
    """The transcript of a run that needs nothing else of its history."""
    child = run.child
    return Transcript(child, Inherited.of(child.seed).after(child.log), run.now_ms)


class ScriptedEngine:
    """Answers each child with the next of fixed replies, the last one for ever.

    A reply that is an Exception ends the child as failed, with its words as the detail.
    """

    def __init__(self, replies: Sequence[str | Exception] = ("done",)) -> None:
        assert replies, "at least one reply"
        self._replies = list(replies)
        self._served = 0

    async def run(self, run: Run) -> Outcome:
        """See Engine."""
        reply = self._replies[min(self._served, len(self._replies) - 1)]
        self._served += 1
        transcript = transcript_of(run)
        rows = transcript.opening()
        rows += transcript.request(rows, SCRIPTED)
        await run.append(rows)
        transcript.accept(rows)
        run.check_lease()
        run.activity("model")
        if isinstance(reply, Exception):
            last = transcript.end("error", error={"message": str(reply), "code": "SCRIPTED"})
            return Outcome(Status.FAILED, Cause.ERROR, str(reply), rows=tuple(last))
        last = transcript.answer([{"type": "text", "text": reply}], SCRIPTED)
        last += transcript.end("completed", last)
        return Outcome(
            Status.COMPLETED,
            output=own_text([*transcript.rows, *last]),
            usage=Usage(model_calls=1),
            rows=tuple(last),
        )


class NoopEngine:
    """Does nothing: one turn without an answer, written with the settlement; for benchmarks."""

    async def run(self, run: Run) -> Outcome:
        """See Engine."""
        transcript = transcript_of(run)
        rows = transcript.opening()
        rows += transcript.end("completed", rows)
        return Outcome(Status.COMPLETED, rows=tuple(rows))
