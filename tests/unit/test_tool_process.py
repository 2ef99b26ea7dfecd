"""Synchronous tools in helper processes: what a kill takes, what an end of the process comes to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_tasks.task import Outcome, Status
from tests.fake_run import CHILD, FakeRun, a_child, check_log, run_child
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.tool_pool import CALLS, ToolPool
from workers.engines.base import StopReason, ToolAnswer

TOOLS = "tests.held_tools"


def an_engine(*names: str) -> AgentEngine:
    return AgentEngine([f"{TOOLS}:{name}" for name in names])


def said(name: str) -> str:
    """What the model reads of one call."""
    return run_child(an_engine(name), a_child(f"!call {name}"))[0].output


def is_alive(pid: int) -> bool:
    """Whether it can still act; one that only waits to be taken in by its parent cannot."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def pids(told: Path) -> list[int]:
    return [int(word) for word in told.read_text().split()]


async def until(condition: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not within 20 s: {what}") from None


async def stopped(
    run: FakeRun, engine: AgentEngine, told: Path, *reasons: StopReason
) -> tuple[Outcome, float]:
    """Stop a run once its tool has told its processes; the outcome, and the seconds that it took."""
    run.task = asyncio.ensure_future(engine.run(run))
    await until(told.exists, "the tool runs")
    assert all(is_alive(pid) for pid in pids(told))
    at = time.monotonic()
    for reason in reasons:
        run.stop(reason)
        for _ in range(10):
            await asyncio.sleep(0)
    return await run.task, time.monotonic() - at


# -- what a kill takes ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shell", "own_session", "spin", "stubborn"])
def test_nothing_that_a_killed_tool_started_lives_when_the_outcome_is_there(
    name: str, tmp_path: Path
) -> None:
    """P9 c, d, e."""
    told = tmp_path / "told"
    run = FakeRun(a_child(f'!call {name} {{"told": "{told}"}}'))

    async def killed() -> tuple[Outcome, float, list[int]]:
        # Held, so that not the end of the engine takes them.
        engine = an_engine(name)
        outcome, seconds = await stopped(run, engine, told, StopReason.KILL)
        return outcome, seconds, [pid for pid in pids(told) if is_alive(pid)]

    outcome, seconds, alive = asyncio.run(killed())
    assert (outcome.status, alive) == (Status.KILLED, [])
    assert seconds < 1
    run._keep(outcome.rows)
    check_log(run.session)
    assert [row["type"] for row in outcome.rows] == ["tool/result", "step/end", "turn/end"]


@pytest.mark.parametrize("reason", [StopReason.HAND_BACK, StopReason.FENCED])
def test_a_tool_is_gone_when_its_child_was_handed_back_or_fenced(reason: StopReason, tmp_path: Path) -> None:
    told = tmp_path / "told"
    run = FakeRun(a_child(f'!call stubborn {{"told": "{told}"}}'))

    async def left() -> list[int]:
        engine = an_engine("stubborn")
        with pytest.raises(asyncio.CancelledError):
            await stopped(run, engine, told, reason)
        return [pid for pid in pids(told) if is_alive(pid)]

    assert asyncio.run(left()) == []


def test_a_second_stop_does_not_cut_short_the_end_of_the_tool(tmp_path: Path) -> None:
    told = tmp_path / "told"
    run = FakeRun(a_child(f'!call stubborn {{"told": "{told}"}}'))

    async def killed() -> list[int]:
        engine = an_engine("stubborn")
        await stopped(run, engine, told, StopReason.HAND_BACK, StopReason.KILL)
        return [pid for pid in pids(told) if is_alive(pid)]

    assert asyncio.run(killed()) == []


def test_a_tool_may_clean_up_when_it_is_killed(tmp_path: Path) -> None:
    told, cleaned = tmp_path / "told", tmp_path / "cleaned"
    run = FakeRun(a_child(f'!call tidy {{"told": "{told}", "cleaned": "{cleaned}"}}'))
    asyncio.run(stopped(run, an_engine("tidy"), told, StopReason.KILL))
    assert cleaned.read_text() == "yes"


def test_a_guard_that_is_killed_takes_its_tool_with_it(tmp_path: Path) -> None:
    told = tmp_path / "told"

    async def guard_killed() -> tuple[ToolAnswer, list[int]]:
        pool = ToolPool()
        calling = asyncio.ensure_future(pool.call(f"{TOOLS}:stubborn", (), {"told": str(told)}, key=""))
        await until(told.exists, "the tool runs")
        os.kill(next(iter(pool._all))._process.pid, signal.SIGKILL)
        answer = await calling
        return answer, [pid for pid in pids(told) if is_alive(pid)]

    answer, alive = asyncio.run(guard_killed())
    assert answer == ToolAnswer("Error: the tool ended its process: signal SIGKILL", is_error=True)
    assert alive == []


def test_a_guard_that_is_stopped_does_not_hold_up_a_kill(tmp_path: Path) -> None:
    told = tmp_path / "told"

    async def killed() -> tuple[list[int], float]:
        pool = ToolPool()
        calling = asyncio.ensure_future(pool.call(f"{TOOLS}:stubborn", (), {"told": str(told)}, key=""))
        await until(told.exists, "the tool runs")
        os.kill(next(iter(pool._all))._process.pid, signal.SIGSTOP)
        calling.cancel()
        at = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await calling
        return [pid for pid in pids(told) if is_alive(pid)], time.monotonic() - at

    alive, seconds = asyncio.run(killed())
    assert alive == []
    assert seconds < 2


ENGINE_OF_ITS_OWN = """
import asyncio, sys
from workers.engines.agent.tool_pool import ToolPool

async def main():
    pool = ToolPool()
    await asyncio.gather(*(
        pool.call("tests.held_tools:" + name, (), {"told": told}, key="")
        for name, told in zip(("stubborn", "spin", "shell"), sys.argv[1:])
    ))

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_helpers_end_when_the_process_of_their_engine_does(number: signal.Signals, tmp_path: Path) -> None:
    told = [tmp_path / name for name in "abc"]
    engine = subprocess.Popen([sys.executable, "-c", ENGINE_OF_ITS_OWN, *map(str, told)], cwd=Path.cwd())

    async def ended() -> None:
        try:
            await until(lambda: all(one.exists() for one in told), "the tools run")
        finally:
            engine.send_signal(number)
            engine.wait(20)
        started = [pid for one in told for pid in pids(one)]
        await until(lambda: not any(map(is_alive, started)), "the tools are gone")

    asyncio.run(ended())


def test_no_helper_is_left_when_the_engine_is_gone() -> None:
    engine = an_engine("process")
    pid = int(run_child(engine, a_child("!call process"))[0].output.split()[-1])
    assert is_alive(pid)
    del engine
    assert not is_alive(pid)


# -- what an end of the process comes to ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stop_iterating", "StopIteration: "),
        ("leave", "SystemExit: 3"),
        ("leave_at_once", "the tool ended its process: exit status 3"),
        ("kill_itself", "the tool ended its process: signal SIGKILL"),
        ("crash", "the tool ended its process: signal SIGSEGV"),
        ("close_all", "the tool ended its process: exit status 70"),
        ("out_of_memory", "the tool ran out of memory"),
        ("odd", "Odd"),
    ],
)
def test_however_a_tool_ends_its_child_goes_on_and_is_told(name: str, words: str) -> None:
    outcome, run = run_child(an_engine(name), a_child(f"!call {name}\n!say after"))
    assert (outcome.status, outcome.output) == (Status.COMPLETED, f"after\n{name} failed: Error: {words}")
    assert run.row("tool/result")["message"]["isError"] is True


def test_a_helper_that_died_is_replaced() -> None:
    outcome, _ = run_child(an_engine("kill_itself", "key"), a_child("!call kill_itself\n!call key"))
    assert outcome.output.splitlines()[1].startswith("key said: ")


def test_a_helper_that_died_while_it_was_idle_is_not_used() -> None:
    async def called() -> list[str]:
        pool = ToolPool()
        first = (await pool.call(f"{TOOLS}:process", (), {}, key="")).text
        os.kill(int(first), signal.SIGKILL)
        await until(lambda: not pool._idle[0].is_ready, "the guard has seen it")
        return [first, (await pool.call(f"{TOOLS}:process", (), {}, key="")).text]

    first, second = asyncio.run(called())
    assert second.isdigit()
    assert first != second


def test_what_a_tool_prints_or_reads_harms_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert said("talk") == "talk said: said"
    assert capfd.readouterr().out == ""


def test_a_fork_of_a_tool_answers_once() -> None:
    outcome, _ = run_child(an_engine("fork", "process"), a_child("!call fork\n!call process"))
    first, second = outcome.output.splitlines()
    assert first == "fork said: parent"
    assert second.removeprefix("process said: ").isdigit()


def test_a_term_signal_of_another_ends_no_tool_while_its_worker_lives() -> None:
    assert said("signal_itself") == "signal_itself said: still here"


# -- calls and answers ------------------------------------------------------------------------------


def test_a_tool_gets_the_types_of_its_signature_and_may_return_what_is_json() -> None:
    call = '!call typed {"when": "2024-05-06T00:00:00", "place": {"name": "x"}, "text": "\\ud800"}'
    outcome, _ = run_child(an_engine("typed"), a_child(call))
    assert outcome.output == 'typed said: {"year":2024,"place":{"name":"x"},"letters":1}'


def test_an_iterable_is_checked_and_handed_over() -> None:
    calls = '!call total {"numbers": [1, 2]}\n!call total {"numbers": [1, "x"]}'
    outcome, _ = run_child(an_engine("total"), a_child(calls))
    first, second = outcome.output.splitlines()
    assert first == "total said: 3"
    assert second.startswith("total failed: Error: 1: ")


def test_a_tool_that_returns_an_awaitable_is_awaited() -> None:
    assert said("awaitable") == "awaitable said: later"


def test_a_tool_in_a_helper_knows_the_key_of_its_call() -> None:
    outcome, run = run_child(an_engine("key"), a_child("!call key"))
    assert outcome.output == f"key said: {CHILD}/{run.row('tool/call')['callId']}"


def test_a_result_is_whole_up_to_its_bound_and_refused_above_it() -> None:
    async def called() -> list[ToolAnswer]:
        pool = ToolPool()
        return [await pool.call(f"{TOOLS}:large", (size,), {}, key="") for size in (20, 64, 0)]

    large, too_large, after = asyncio.run(called())
    assert (len(large.text), large.is_error) == (20 * 2**20, False)
    assert too_large == ToolAnswer("Error: the result is larger than 64 MiB", is_error=True)
    assert after == ToolAnswer("")


def test_a_helper_serves_again() -> None:
    outcome, _ = run_child(an_engine("process", "key"), a_child("!call process\n!call key\n!call process"))
    first, _, third = outcome.output.splitlines()
    assert first == third


def test_forty_calls_at_once_run_within_the_bound_and_all_answer(tmp_path: Path) -> None:
    inside, release = tmp_path / "inside", tmp_path / "release"
    inside.mkdir()
    given = {"folder": str(inside), "release": str(release)}

    async def called() -> tuple[list[ToolAnswer], int, int]:
        pool = ToolPool()
        calls = [asyncio.ensure_future(pool.call(f"{TOOLS}:meet", (), given, key="")) for _ in range(40)]
        await until(lambda: len(list(inside.iterdir())) >= CALLS, "as many run as may")
        started = len(pool._all)
        release.touch()
        return await asyncio.gather(*calls), started, len(pool._all)

    answers, started, kept = asyncio.run(called())
    assert started == CALLS
    assert max(int(answer.text) for answer in answers) <= CALLS
    assert not any(answer.is_error for answer in answers)
    assert kept <= 8


def test_a_call_that_waits_for_its_turn_can_be_cancelled(tmp_path: Path) -> None:
    told = tmp_path / "told"

    async def cancelled() -> ToolAnswer:
        pool = ToolPool(calls=1)
        first = asyncio.ensure_future(pool.call(f"{TOOLS}:spin", (), {"told": str(told)}, key=""))
        await until(told.exists, "the first runs")
        second = asyncio.ensure_future(pool.call(f"{TOOLS}:process", (), {}, key=""))
        third = asyncio.ensure_future(pool.call(f"{TOOLS}:process", (), {}, key=""))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert len(pool._all) == 1
        first.cancel()
        return await third

    assert asyncio.run(cancelled()).text.isdigit()


def test_arguments_that_cannot_be_sent_are_an_errored_answer() -> None:
    answer = asyncio.run(ToolPool().call(f"{TOOLS}:process", (lambda: None,), {}, key=""))
    assert answer.is_error
    assert answer.text.startswith("Error: the arguments do not reach the tool (")
