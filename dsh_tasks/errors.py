"""Every error that dsh-tasks raises on purpose.

    DshTasksError
    |- InputRefused          exit 6   what was given cannot be used
    |  |- SessionRefused              a session log cannot be read
    |  |- SeedRefused                 a readable log gives no valid seed under this provider
    |  |- OptionRefused               an option that this provider or engine cannot honour
    |  |- SchemaRefused               an output schema outside the supported subset
    |  |- KeyConflict                 the call key is taken by a call with other arguments
    |  `- ConfigRefused               settings that contradict themselves (at load)
    |- LimitReached          exit 4   a bound refused; it names itself
    |- TaskNotFound          exit 3   unknown, or not the caller's: both look the same
    |- OwnerNotRunning       exit 4   a child that no longer runs cannot start, kill or acknowledge
    |- SpeakerTaken          exit 4   another process speaks for this session
    |- McpServerFailed       exit 1   an MCP server of the worker does not start or answer
    |- StillRunning          exit 7   a wait ended before the task did
    |- Promoted              exit 7   the wait was turned into a background task, which goes on
    `- StoreUnavailable      exit 5   the server does not answer in time

The call site gives facts, the class makes the sentence. Facts are plain JSON values, so an error
survives pickle and JSON; they never hold prompts, outputs, tool arguments or credentials.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DshTasksError(Exception):
    """Base of all typed errors: a stable `code`, JSON `facts`, a one-line message, an exit code."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword arguments do not unpickle by themselves.
        return _rebuild, (type(self), self.message, self.facts)

    def to_json(self) -> dict[str, Any]:
        """The error as a JSON object: `code`, `message`, `facts`."""
        return {"code": self.code, "message": self.message, "facts": self.facts}


def _rebuild(cls: type[DshTasksError], message: str, facts: dict[str, Any]) -> DshTasksError:
    error = cls.__new__(cls)
    DshTasksError.__init__(error, message, **facts)
    return error


class InputRefused(DshTasksError):
    """Something that was given cannot be used; nothing was started."""

    code = "input_refused"
    exit_code = 6


class SessionRefused(InputRefused):
    """A session log cannot be read: names the line (from 1) and, where known, seq and type."""

    code = "session_refused"

    def __init__(
        self, what: str, *, line: int | None = None, seq: int | None = None, event_type: str | None = None
    ) -> None:
        place = _place(line, seq, event_type)
        super().__init__(
            f"session log refused{place}: {what}", what=what, line=line, seq=seq, type=_short(event_type)
        )


class SeedRefused(InputRefused):
    """A readable log gives no valid seed: names the event that cannot be kept."""

    code = "seed_refused"

    def __init__(self, what: str, *, seq: int | None = None, event_type: str | None = None) -> None:
        place = _place(None, seq, event_type)
        super().__init__(f"seed refused{place}: {what}", what=what, seq=seq, type=_short(event_type))


def _place(line: int | None, seq: int | None, event_type: str | None) -> str:
    parts = [
        f"line {line}" if line is not None else "",
        f"seq {seq}" if seq is not None else "",
        f"({_short(event_type)!r})" if event_type is not None else "",
    ]
    text = " ".join(part for part in parts if part)
    return f" at {text}" if text else ""


def _short(event_type: str | None) -> str | None:
    # A row of 50 MB may be nothing but its type.
    return None if event_type is None else event_type[:80]


class OptionRefused(InputRefused):
    """An option that cannot be honoured here: names the option and why."""

    code = "option_refused"

    def __init__(self, option: str, why: str) -> None:
        super().__init__(f"{option}: {why}", option=option, why=why)


class SchemaRefused(InputRefused):
    """An output schema that is invalid or outside the supported subset."""

    code = "schema_refused"

    def __init__(self, why: str, *, path: str = "$") -> None:
        super().__init__(f"output schema refused at {path}: {why}", why=why, path=path)


class KeyConflict(InputRefused):
    """The same call key came with other arguments; the first task stays as it is."""

    code = "key_conflict"

    def __init__(self, *, task_id: str, differs: list[str]) -> None:
        super().__init__(
            f"this call already started {task_id} with other {', '.join(differs)}; use another key",
            task_id=task_id,
            differs=differs,
        )


class ConfigRefused(InputRefused):
    """Settings that cannot hold: found at load, never at the first call."""

    code = "config_refused"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"configuration of {name!r}: {why}", name=name, why=why)


class LimitReached(DshTasksError):
    """A bound refused the call: names the limit, its value, and the way out.

    `value` and `cap` are whole numbers; sums of money are US dollars as text.
    """

    code = "limit_reached"
    exit_code = 4

    def __init__(self, limit: str, *, value: int | str, cap: int | str, way_out: str) -> None:
        super().__init__(
            f"limit {limit} reached: {value} of {cap}; {way_out}",
            limit=limit,
            value=value,
            cap=cap,
            way_out=way_out,
        )


class TaskNotFound(DshTasksError):
    """No such task for this caller. A stranger's id reads exactly like a random one."""

    code = "task_not_found"
    exit_code = 3

    def __init__(self, task_id: str) -> None:
        super().__init__(f"no task {task_id[:80]!r}", task_id=task_id[:80])


class OwnerNotRunning(DshTasksError):
    """The calling child is no longer the running attempt of its task; nothing was changed."""

    code = "owner_not_running"
    exit_code = 4

    def __init__(self, task_id: str, *, status: str) -> None:
        super().__init__(
            f"{task_id} is {status} and this attempt may not act for it", task_id=task_id, status=status
        )


class SpeakerTaken(DshTasksError):
    """Another process holds the owner lease of this session; this one may only read."""

    code = "speaker_taken"
    exit_code = 4

    def __init__(self, session: str, *, for_ms: int) -> None:
        super().__init__(
            f"another process speaks for session {session[:80]!r} for {for_ms} ms more",
            session=session[:80],
            for_ms=for_ms,
        )


class McpServerFailed(DshTasksError):
    """An MCP server of the worker's file does not start or answer: names it, and never what it said."""

    code = "mcp_server_failed"

    def __init__(self, server: str, why: str) -> None:
        super().__init__(
            f"MCP server {server[:80]!r}: {why}; see to its entry in the worker's mcpServers file",
            server=server[:80],
            why=why,
        )


class StillRunning(DshTasksError):
    """A wait ended before its task; the task goes on."""

    code = "still_running"
    exit_code = 7

    def __init__(self, task_id: str, *, status: str, waited_ms: int) -> None:
        super().__init__(
            f"{task_id} is still {status} after {waited_ms} ms; it goes on",
            task_id=task_id,
            status=status,
            waited_ms=waited_ms,
        )


class Promoted(DshTasksError):
    """The wait of a foreground call was turned into a background task; a notice tells its end."""

    code = "promoted"
    exit_code = 7

    def __init__(self, task_id: str, *, after_ms: int | None = None) -> None:
        why = "" if after_ms is None else f" after {after_ms} ms in the foreground"
        super().__init__(
            f"{task_id} goes on in the background{why}; read it by its id", task_id=task_id, after_ms=after_ms
        )


class StoreUnavailable(DshTasksError):
    """The server did not answer in time. Nothing is known about the task's state."""

    code = "store_unavailable"
    exit_code = 5

    def __init__(self, why: str) -> None:
        super().__init__(f"the task store is unavailable: {why}", why=why)
