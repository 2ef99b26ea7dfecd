"""The delegation tool: one provider under one name; starts a child and waits for it, or leaves it running."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsh_tasks.cancellation import to_the_end
from dsh_tasks.config import SubagentToolConfig
from dsh_tasks.errors import DshTasksError, OptionRefused, Promoted
from dsh_tasks.task import Status, cut_detail
from dsh_tasks.tools import wording
from dsh_tasks.tools.arguments import flag_in, only, text_in
from dsh_tasks.tools.base import (
    Aborted,
    Call,
    Output,
    Run,
    TaskClient,
    Tool,
    ToolResult,
    caller_of,
    errored,
    refused,
    until_aborted,
)
from dsh_tasks.tools.fence import fenced


class SubagentTool(Tool):
    """`subagent(description, prompt, run_in_background?)` over one provider; its config fixes the policy."""

    def __init__(self, client: TaskClient, config: SubagentToolConfig) -> None:
        super().__init__(client)
        self.config = config
        self._waited: dict[str, Run] = {}
        """Runs of the calls that wait now, by call id."""

    @property
    def name(self) -> str:
        """The configured `toolName`."""
        return self.config.tool_name

    @property
    def exclusive(self) -> bool:
        """Children may share a workspace: alone, unless the operator declares the calls safe to overlap."""
        return not self.config.overlapping_calls

    @property
    def is_available(self) -> bool:
        """The tool exists only while its provider does. At the depth cap it stays."""
        return self.config.provider in self._client.registry

    @property
    def background(self) -> wording.Background:
        """What a background call does."""
        return self.config.background_mode if self.config.enable_run_in_background else "disabled"

    @property
    def description(self) -> str:
        """The configured text, else the one for what the provider passes on."""
        if self.config.description is not None:
            return self.config.description
        return wording.tool_description(self._sees(), self.background)

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments; `run_in_background` only where it is enabled."""
        properties = {
            "description": {"type": "string", "description": wording.DESCRIPTION_TEXT},
            "prompt": {"type": "string", "description": wording.prompt_text(self._sees())},
        }
        if self.background != "disabled":
            text = wording.BACKGROUND_TEXT[self.background]
            properties["run_in_background"] = {"type": "boolean", "description": text}
        return {
            "type": "object",
            "properties": properties,
            "required": ["description", "prompt"],
            "additionalProperties": False,
        }

    def _sees(self) -> str | None:
        return wording.inherited(self._client.registry.get(self.config.provider))

    async def _run(self, arguments: Mapping[str, Any], call: Call) -> ToolResult:
        only(arguments, ("description", "prompt", "run_in_background"))
        description = text_in(arguments, "description")
        prompt = text_in(arguments, "prompt")
        in_background = flag_in(arguments, "run_in_background")
        if in_background and self.background == "disabled":
            raise OptionRefused("run_in_background", "this tool has no background mode; leave it out")
        if in_background and self.background == "continuable":
            raise OptionRefused("run_in_background", "continuable children are not built yet; leave it out")
        try:
            run = await self._start(description, prompt, call, in_background=in_background)
        except Aborted:
            return errored("the call was aborted before the subagent was started", code="aborted")
        if in_background:
            return _background(run)
        return await self._foreground(run, call)

    async def promote(self, call_id: str) -> bool:
        """Turn a call that waits now into a background task: it returns at once, and its child goes on.

        `call_id` as in the call. False where no such call waits here, or its child has just ended. From
        elsewhere `client.promote(task_id)` does the same. Raises StoreUnavailable.
        """
        run = self._waited.get(call_id)
        return run is not None and (await run.promote()).accepted

    async def _start(self, description: str, prompt: str, call: Call, *, in_background: bool) -> Run:
        client = caller_of(self._client, call)
        starting = client.start(
            self.config.provider,
            parent=call.session,
            prompt=prompt,
            label=description,
            agent_options=self.config.agent_options,
            tool_filter=self.config.tool_filter,
            persona=self.config.persona,
            output_schema=self.config.output_schema,
            max_depth=self.config.max_depth,
            key=call.repeat_key,
            mode="background" if in_background else "foreground",
            instance=self.name,
            deadline_ms=self.config.deadline_ms,
            fenced_output=self.config.fenced_output,
            working_folder=self.config.working_folder,
            cost_budget=self.config.cost_budget,
        )
        return await until_aborted(starting, call.abort)

    async def _foreground(self, run: Run, call: Call) -> ToolResult:
        """Wait for the end and dispose, whatever comes: the end, a fault, an abort, a cancellation.

        What goes on in the background is the task tools' business: disposing leaves it alone.
        """
        waited = {} if call.call_id is None else {call.call_id: run}
        self._waited |= waited
        try:
            result = await self._result(run, call)
        finally:
            for name in waited:
                self._waited.pop(name, None)
            disposal = await _disposal(run)
        if isinstance(disposal, Exception):
            return _with_disposal(run, result, disposal)
        if result.is_error and not disposal:
            # Promoted at the moment of its abort: it was not stopped.
            return _background(run, Promoted(run.id))
        return result

    async def _result(self, run: Run, call: Call) -> ToolResult:
        try:
            after_ms = self.config.promote_foreground_after_ms
            output = await until_aborted(run.result(promote_after_ms=after_ms), call.abort)
        except Promoted as promoted:
            return _background(run, promoted)
        except Aborted:
            return errored(f"the call was aborted and {run.id} was stopped", code="aborted", runId=run.id)
        except DshTasksError as error:
            return refused(error)
        except Exception as error:  # noqa: BLE001 - the model gets a sentence, never a traceback
            return errored(_diagnostic(error), code="error", runId=run.id)
        if output.task.status is Status.COMPLETED:
            return _completed(run, output)
        return self._not_completed(run, output)

    def _not_completed(self, run: Run, output: Output) -> ToolResult:
        task = output.task
        facts = {
            "code": "not_completed",
            "runId": run.id,
            "status": task.status.value,
            "cause": task.cause.value if task.cause is not None else None,
        }
        message = wording.ending(task)
        seen = (run.id,)
        if not output.text:
            return replace(errored(message, **facts), seen=seen)
        if not self.config.partial_output_in_errors:
            return replace(errored(f"{message}; {wording.PARTIAL_HINT}", **facts), seen=seen)
        result = errored(message, **facts, partialOutput=output.text)
        return ToolResult(
            result.value,
            f"{result.text}\n{wording.PARTIAL_MARK}\n{_said(output.text, output)}",
            is_error=True,
            seen=seen,
        )


def _background(run: Run, promoted: Promoted | None = None) -> ToolResult:
    text = wording.STARTED.format(id=run.id)
    if promoted is not None:
        text += f"\n{wording.promoted(promoted.facts['after_ms'])}"
    return ToolResult({"kind": "background", "taskId": run.id}, text)


def _completed(run: Run, output: Output) -> ToolResult:
    if output.has_structured:
        blocks, text = [output.structured], _said(output.structured_json, output)
    elif output.text:
        blocks, text = [{"type": "text", "text": output.text}], _said(output.text, output)
    else:
        blocks, text = [], wording.NO_OUTPUT
    if output.next_offset is not None and not output.has_structured:
        text += (
            f"\n[output: {output.next_offset} of {output.total_bytes} bytes shown; continue with "
            f"task_output, task_id {run.id}, offset {output.next_offset}]"
        )
    return ToolResult({"kind": "foreground", "runId": run.id, "output": blocks}, text, seen=(run.id,))


def _said(text: str, output: Output) -> str:
    """The child's words as the model reads them."""
    return fenced(text, output.task.id) if output.fenced else text


async def _disposal(run: Run) -> Exception | bool:
    """Dispose of the run to the end, also under a cancellation; what went wrong, or whether it has ended."""
    try:
        return await to_the_end(run.dispose())
    except Exception as error:  # noqa: BLE001 - kept beside the result's own diagnostic
        return error


def _with_disposal(run: Run, result: ToolResult, error: Exception) -> ToolResult:
    """An errored result that keeps both diagnostics, or the only one."""
    also = f"disposing of {run.id} failed: {_diagnostic(error)}"
    if not result.is_error:
        message = f"{also}; it had completed and its output can be read with task_output"
        return errored(message, code="not_disposed", runId=run.id)
    value = {
        **result.value,
        "message": f"{result.value['message']}; and {also}",
        "disposal": _diagnostic(error),
    }
    first, newline, rest = result.text.partition("\n")
    return ToolResult(value, f"{first}; and {also}{newline}{rest}", is_error=True)


def _diagnostic(error: Exception) -> str:
    """At most 4096 bytes of one line, without addresses: these may hold a password."""
    if isinstance(error, DshTasksError):
        return error.message
    words = " ".join(re.sub(r"\w+://\S+", "<address>", str(error)).split())
    return cut_detail(f"{type(error).__name__}: {words}" if words else type(error).__name__)
