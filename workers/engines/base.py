"""Engine and Run: all that an engine may see and do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from dsh_tasks.notice import Notice
from dsh_tasks.session import Event, Header
from dsh_tasks.submission import Policy
from dsh_tasks.task import Outcome


class StopReason(StrEnum):
    """Why a run is asked to stop. The runner sets it, then cancels the engine's coroutine."""

    KILL = "kill"
    """The task was killed: keep partial text, end the turn `aborted`, return an Outcome."""
    HAND_BACK = "hand-back"
    """The worker leaves: return or raise at once; the next attempt continues from the log."""
    STALLED = "stalled"
    """Nothing moved for too long: return an Outcome as for KILL (FAILED, cause STALLED), or let the
    cancellation pass. The next attempt continues from the log; the Outcome counts where none may follow."""
    FENCED = "fenced"
    """The lease is lost: no write will be accepted any more; stop at once."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool call came to: the text that the model reads, and whether it is an error."""

    text: str
    is_error: bool = False
    seen: tuple[str, ...] = ()
    """The child's own children whose ending this tells: no notice is to follow."""


@dataclass(frozen=True, slots=True)
class ChildTool:
    """A tool handed in to a run. `call(arguments, call_id)`; arguments are decoded JSON, unchecked."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""
    call: Callable[[Mapping[str, Any], str], Awaitable[ToolAnswer]]
    exclusive: bool = False
    """Never run beside another call of the same answer."""
    idempotent: bool = False
    """May be run again after a crash: it gives the same answer and changes nothing."""
    result_bytes: int | None = None
    """Most UTF-8 bytes of a result that the model reads; None is a tool that bounds itself."""


@dataclass(frozen=True, slots=True)
class Child:
    """What is fixed for one attempt."""

    task_id: str
    session_id: str
    attempt: int
    depth: int
    label: str
    provider: str
    """Name of the provider instance (`spawn`, `fork`, `fork-lite`, ...)."""
    prompt: tuple[Mapping[str, Any], ...]
    """Content blocks of the child's first message, verbatim."""
    header: Header
    """Header of the child's own session log."""
    seed: tuple[Event, ...]
    """The inherited events, from seq 0; shared between children, never to be changed."""
    log: tuple[Event, ...]
    """Own rows that earlier attempts wrote, after the seed (its end-of-seed marker included)."""
    policy: Policy
    model: str | None = None
    """The operator's model (`DSH_TASKS_MODEL`), None where none is set."""


class Run(Protocol):
    """One attempt as its engine sees it."""

    @property
    def child(self) -> Child:
        """What is fixed."""

    @property
    def tools(self) -> Sequence[ChildTool]:
        """Tools of the place: delegation and task tools, bound to this child and this attempt."""

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the coroutine is being cancelled; None while it is not."""

    @property
    def household(self) -> Household | None:
        """The child's own children; None where it can have none."""

    def now_ms(self) -> int:
        """Epoch ms, for `time` of rows."""

    async def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows (v4 row dicts, `seq` contiguous after seed and log) durably, fenced.

        Raises Fenced when this attempt may not write any more, and CancelledError where a kill was
        accepted meanwhile (`stop_reason` says so).
        """

    def activity(self, words: str) -> None:
        """Say in a few words without content what goes on: `model`, `tool:read`; shown in lists.

        Words that begin with `tool` say that a tool runs, which may be silent for longer than the rest.
        """

    def streamed(self, size: int) -> None:
        """Say that the model's answer has grown by so many characters of any kind: a sign of progress."""

    @property
    def has_budget(self) -> bool:
        """Whether the tree or the child has a budget of tokens or costs, so that calls must be told."""

    @property
    def has_cost_budget(self) -> bool:
        """Whether one of them is of costs, so that the model must have a price."""

    @property
    def output_reserve(self) -> int:
        """Output tokens that a call reserves where the child names no most."""

    async def reserve(self, tokens: int, cost_nanousd: int) -> None:
        """Call before a model call with the tokens that it may take, and what this attempt has cost so far.

        Raises BudgetExceeded where a budget does not allow the call, else as `append`.
        """

    async def correct(self, tokens: int, cost_nanousd: int) -> None:
        """Call after a model call that ended well with the tokens that it took, and the cost as above.

        Raises as `append`.
        """

    def permit(self, route: str) -> AbstractAsyncContextManager[Permit]:
        """Hold it around one model call, never around a tool call: it may be one of few.

        Waits while the route (`provider:model`) cools down or is full over all workers. Raises RouteBusy
        after the bound of that wait, else as `append`.
        """

    def check_lease(self) -> None:
        """Call before each model or tool call. Raises Fenced when the lease is past by the local clock."""


class Household(Protocol):
    """The children of the child that runs. Every call raises as `Run.append`."""

    @property
    def has_any(self) -> bool:
        """Whether this or an earlier attempt may have started one: else there is nothing to ask for."""

    async def notices(self) -> Sequence[Notice]:
        """Endings that are not acknowledged and that nothing holds back, in their order."""

    async def acknowledge(self, task_ids: Sequence[str]) -> None:
        """The log holds these endings now."""

    async def living(self) -> Sequence[str]:
        """Ids of those that have not ended."""

    async def ended(self, task_ids: Sequence[str]) -> None:
        """Return when all of them have; those that are queued run here meanwhile."""

    async def kill(self, task_ids: Sequence[str]) -> None:
        """Kill them and all below them."""


class Permit(Protocol):
    """What a model call tells about its route while it has a permit."""

    async def accepted(self) -> None:
        """The provider took the call: others that wait for a sign may go on."""

    async def cools(self, pause_ms: int) -> None:
        """The provider wants a pause; no worker calls this route before it is over."""


class Fenced(Exception):
    """This attempt no longer owns its task; whatever it does now is not recorded."""


class BudgetExceeded(Exception):
    """A budget of the tree or of the child does not allow the next model call; the text names it."""


class RouteBusy(Exception):
    """A model call got no permit of its route within the bound."""

    def __init__(self, *, waited_ms: int, why: str) -> None:
        super().__init__(f"no call was possible for {waited_ms / 1000:g} s: {why}")


class Engine(Protocol):
    """Executes a child."""

    async def run(self, run: Run) -> Outcome:
        """Run the child to its end and say how it ended.

        Writes the log as it goes by `run.append`; the last rows (partial message, `step/end`,
        `turn/end`) go into the Outcome, whose `rows` continue the seq. On cancellation looks at
        `run.stop_reason`: for KILL it returns the partial Outcome (status KILLED), for STALLED it may, else
        it lets the CancelledError pass. Every other exception that leaves here is recorded as `failed`,
        `error`.
        """
