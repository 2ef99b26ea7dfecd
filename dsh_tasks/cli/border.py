"""Border: what leaves a command. One line and an exit code for a person, one JSON document for a program."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import FrameType
from typing import Annotated, Any, TypeVar

import typer

from dsh_tasks.errors import DshTasksError
from dsh_tasks.task import Status, Task

T = TypeVar("T")

DONE, FAILED, USAGE, STILL_RUNNING, KILLED, INTERRUPTED = 0, 1, 2, 7, 8, 130
BROKEN_PIPE = 141
"""What a shell shows for a process that SIGPIPE ended; the reader of our output went away."""

DEBUG = "DSH_TASKS_DEBUG"

# `click.ClickException`, from click or from the copy that newer releases of typer carry.
_CliRefusal: type[Exception] = typer.BadParameter.__mro__[2]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, errors too.")]


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM: the command cleans up and ends.

    No KeyboardInterrupt: raised within a text that is executed (a dataclass in the making is enough), that
    one makes Python end itself by SIGINT however it is caught.
    """


class Interruption:
    """Whether this process was told to end. Whatever swallows the exception, the next wait knows."""

    came = False

    @classmethod
    def handle(cls, _number: int, _frame: FrameType | None) -> None:
        """A signal handler. Raises Interrupted."""
        cls.came = True
        raise Interrupted


def run(app: Callable[..., Any], arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code and never raises."""
    # Also a command line that cannot be parsed must answer in the form that it asks for.
    as_json = "--json" in arguments
    try:
        return _end(app(args=list(arguments), prog_name="dsh-tasks", standalone_mode=False))
    except (KeyboardInterrupt, Interrupted, typer.Abort):
        return _tell(as_json, "interrupted", "interrupted", INTERRUPTED)
    except DshTasksError as error:
        return _tell(as_json, error.code, error.message, error.exit_code, error.facts)
    except BrokenPipeError:
        return _reader_gone()
    except Exception as error:  # noqa: BLE001 - a person gets a line, never a traceback
        if isinstance(error, _CliRefusal):
            return _tell(as_json, "usage", _usage(error), USAGE)
        return _unexpected(as_json, error)


def _end(code: object) -> int:
    """Flush here, where a reader that went away is still ours to handle."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    return code if isinstance(code, int) else DONE


def _reader_gone() -> int:
    # The interpreter flushes once more at exit, and would complain then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _tell(
    as_json: bool, code: str, message: str, exit_code: int, facts: Mapping[str, Any] | None = None
) -> int:
    if as_json:
        facts = dict(facts or {})
        emit({"error": {"code": code, "message": message, "facts": facts, "exit_code": exit_code}})
    else:
        progress(f"dsh-tasks: {message}")
    return _end(exit_code)


def _usage(error: Exception) -> str:
    words = " ".join(str(getattr(error, "format_message", lambda: error)()).split()).rstrip(".")
    words = words.removeprefix("Invalid value: ")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "dsh-tasks"
    return f"{words[:1].lower()}{words[1:]} (see {command} --help)"


def _unexpected(as_json: bool, error: Exception) -> int:
    if Interruption.came:
        # Raised within an import it may come out as a RuntimeError.
        return _tell(as_json, "interrupted", "interrupted", INTERRUPTED)
    if os.environ.get(DEBUG):
        traceback.print_exc()
    message = f"unexpected {type(error).__name__}: {without_addresses(str(error))}; {DEBUG}=1 shows where"
    return _tell(as_json, "unexpected", message, FAILED)


def without_addresses(text: str) -> str:
    """One line of at most 300 characters without URLs: these may hold a password."""
    return " ".join(re.sub(r"\w+://\S+", "<address>", text).split())[:300]


def emit(document: Any) -> None:
    """The JSON document of this command, on stdout."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def say(text: str = "") -> None:
    """A line of the answer, on stdout."""
    print(text)


def progress(text: str) -> None:
    """A line beside the answer, on stderr."""
    print(text, file=sys.stderr, flush=True)


def exit_code_of(task: Task) -> int:
    """What a look at a task ends with."""
    match task.status:
        case Status.COMPLETED:
            return DONE
        case Status.FAILED:
            return FAILED
        case Status.KILLED:
            return KILLED
        case _:
            return STILL_RUNNING


def awaited(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; Ctrl-C and SIGTERM cancel it, and are raised as Interrupted once it has cleaned up."""

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        # A KeyboardInterrupt in the middle of the loop would end it before anything has cleaned up.
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            loop.add_signal_handler(number, task.cancel)
        try:
            if Interruption.came:
                work.close()
                raise Interrupted
            return await work
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        raise Interrupted from None
