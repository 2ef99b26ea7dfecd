"""P7. Kill takes the subtree and only the subtree (claude-code#95138, #73916, GENesis#1662)."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from dsh_tasks.client import AsyncClient, Client
from dsh_tasks.errors import OwnerNotRunning
from dsh_tasks.settings import Settings
from dsh_tasks.store import Fence
from dsh_tasks.task import Cause, Status
from tests.census import Census, census_of
from tests.model_server import ModelServer, Reply, Request
from tests.rig_tools import Rig, by_tool
from tests.waiting import wait_until

pytestmark = pytest.mark.rig


def answer(request: Request) -> Reply:
    return Reply("kept" if request.prompt == "A3" else "late", blocks=request.prompt != "A3")


class Acting:
    """Starts children as a running child does: with its attempt's number and token, read off its record."""

    def __init__(self, client: Client, census: Census, task_id: str) -> None:
        inner = client._client
        fence = Fence(int(census.field(task_id, "attempt")), census.field(task_id, "token"))
        self._client = client
        self._acting = AsyncClient(
            inner.store, inner._wakeups, inner._publisher, owner=task_id, fence=fence, waiter=inner.waiter
        )

    def start(self, prompt: str) -> str:
        return self._client.call(self._acting.start("spawn", prompt=prompt, label=prompt)).id


def test_a_kill_takes_what_is_below_and_nothing_beside_it(
    make_settings: Callable[..., Settings],
    make_rig: Callable[[Settings], Rig],
    make_client: Callable[..., Client],
) -> None:
    settings = make_settings(notice_hold_ms=200)
    rig, root = make_rig(settings), make_client(settings, owner="root")
    with ModelServer(answer) as model, census_of(settings) as census:
        workers = [rig.start_worker(concurrency=2, **model.environment) for _ in range(2)]
        for worker in workers:
            worker.await_ready()

        def runs(task_id: str) -> str:
            prompt = census.field(task_id, "label")
            wait_until(lambda: model.calls[prompt], f"{prompt} asks its model")
            assert root.task(task_id).status is Status.RUNNING
            return task_id

        # Four slots: A, B, A1 and A1a; A2 finds none.
        ids = {name: root.start("spawn", prompt=name, label=name).id for name in ("B", "A")}
        runs(ids["B"])
        below_a = Acting(root, census, runs(ids["A"]))
        ids["A3"] = below_a.start("A3")
        wait_until(lambda: root.task(ids["A3"]).is_terminal, "A3 completed")
        ids["A1"] = below_a.start("A1")
        ids["A1a"] = Acting(root, census, runs(ids["A1"])).start("A1a")
        runs(ids["A1a"])
        ids["A2"] = below_a.start("A2")
        assert root.task(ids["A2"]).status is Status.QUEUED

        receipt = root.kill(ids["A"])
        killed_s = time.monotonic()
        taken = {"A": "running", "A1": "running", "A1a": "running", "A2": "queued"}
        assert {task_id: str(status) for task_id, status in receipt.took} == {
            ids[name]: status for name, status in taken.items()
        }
        assert len(receipt.took) == len(taken)
        with pytest.raises(OwnerNotRunning):
            below_a.start("too late")

        wait_until(
            lambda: all(root.task(ids[name]).status is Status.KILLED for name in taken),
            "A, A1, A1a and A2 are killed",
            within_s=5 - (time.monotonic() - killed_s),
        )
        causes = {name: root.task(ids[name]).cause for name in taken}
        assert causes == {"A": Cause.OWNER} | dict.fromkeys(("A1", "A1a", "A2"), Cause.ANCESTOR)
        with pytest.raises(OwnerNotRunning):
            below_a.start("still too late")
        again = root.kill(ids["A"])
        assert (again.accepted, again.status, again.took) == (False, Status.KILLED, ())
        assert "already finished" in by_tool(root, "task_kill", task_id=ids["A"]).text

        kept = root.for_owner(ids["A"]).output(ids["A3"])
        assert (kept.task.status, kept.text) == (Status.COMPLETED, "kept")
        assert root.task(ids["B"]).status is Status.RUNNING
        model.release("B")
        wait_until(lambda: root.task(ids["B"]).is_terminal, "B ended")
        assert root.task(ids["B"]).status is Status.COMPLETED

        for worker, how in zip(workers, (signal.SIGTERM, signal.SIGKILL), strict=True):
            worker.process.send_signal(how)
            worker.process.wait(30)
        for worker in [rig.start_worker(concurrency=2, **model.environment) for _ in range(2)]:
            worker.await_ready()
        later = [root.start("spawn", prompt=f"later {n}") for n in range(4)]
        for run in later:
            wait_until(
                lambda run=run: model.calls[run_prompt(root, run.id)], "every slot is free: four run at once"
            )
        assert census.queued_messages() == 0, "no message of A2 is left that could wake it"
        assert model.calls["A2"] == model.calls["too late"] == model.calls["still too late"] == 0
        model.release()
        for run in later:
            run.result()

        wait_until(lambda: len(root.notices()) >= 2, "the notice of A is no longer held back")
        told = [
            notice.task_id for notice in root.notices() if notice.task_id not in {run.id for run in later}
        ]
        assert sorted(told) == sorted([ids["A"], ids["B"]]), (
            "one about A, one about B, none about what is below A"
        )
        assert census.live_in_tree("root") == census.hints() == 0
        assert [census.live(session) for session in ("root", ids["A"], ids["A1"])] == [0, 0, 0]
        assert len(root.list_tasks()) == len(ids) + len(later), "no ghost of a refused start"


def run_prompt(root: Client, task_id: str) -> str:
    (block,) = root.call(root._client.store.read(task_id, caller="")).record.prompt
    return str(block["text"])
