"""`demo`: the whole way on this machine, with a server and a worker of its own that end with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from dsh_tasks import format as log_format
from dsh_tasks.cli import processes, render
from dsh_tasks.cli.border import DONE, FAILED, AsJson, Interruption, awaited, emit, progress, say
from dsh_tasks.cli.demo_cast import PARTS
from dsh_tasks.cli.demo_play import Play, Played, models_of
from dsh_tasks.cli.demo_view import LiveView, PlainView, View
from dsh_tasks.cli.up import answering, end_by
from dsh_tasks.client import AsyncClient
from dsh_tasks.config import read_config
from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.queue import make_app
from dsh_tasks.session import Session
from dsh_tasks.settings import Settings, load
from dsh_tasks.store import embedded
from dsh_tasks.task import Status, Task

PARENT = "parent.session.v4.jsonl"
PLAY_UNTIL_S = 23.0
"""So long after the start what still runs is killed: the demo ends within half a minute with any model."""
WORKER_WITHIN_S = 20.0
STOP_WITHIN_S = 3.0
SLOTS = 16
OFFLINE = "offline"
KEY_OF_PARENT = "DEEPSEEK_API_KEY"
"""The key that fits the model route of the packaged session."""


def demo(as_json: AsJson = False) -> int:
    """Show the whole way once.

    With a server and a worker of its own, which end with it. Uses
    DSH_TASKS_MODEL, or DEEPSEEK_API_KEY, else an offline model.
    """
    live = render.is_terminal() and not as_json
    view: View = LiveView() if live else PlainView(progress if as_json else say)
    end_by(Interruption.handle)
    began_s = time.monotonic()
    model = load().model
    with tempfile.TemporaryDirectory(prefix="dsh-tasks-demo-") as folder:
        log, parent = packaged_parent(Path(folder))
        offline = is_offline(model)
        _introduce(view, parent, model_words(model, parent))
        with house(Path(folder), view, model) as settings:
            until_s = began_s + PLAY_UNTIL_S
            played, models = awaited(_play(settings, parent, log, view, offline=offline, until_s=until_s))
            _conclude(view, played, models)
    seconds = time.monotonic() - began_s
    view.line("")
    view.line(f"done in {seconds:.1f} s; server and worker have ended, their data is gone")
    if as_json:
        emit({**played_value(played, models), "model": model_words(model, parent), "seconds": seconds})
    if any(task.status is Status.COMPLETED for task in played.tasks):
        return DONE
    progress("dsh-tasks: no child completed; DSH_TASKS_MODEL=offline shows the same without a real model")
    return FAILED


def is_offline(model: str | None) -> bool:
    """Whether the children use the offline model."""
    if model is not None:
        return model == OFFLINE
    return not os.environ.get(KEY_OF_PARENT)


def model_words(model: str | None, parent: Session) -> str:
    """Which model the children use, and why."""
    if is_offline(model):
        return (
            "offline: no real model, but a small program that reads the history and follows directives; "
            f"set DSH_TASKS_MODEL or {KEY_OF_PARENT} for a real one"
        )
    if model is not None:
        return f"{model} (DSH_TASKS_MODEL)"
    route = parent.model_route()
    return f"{route[1] if route else 'deepseek'}, as the parent ({KEY_OF_PARENT} is set)"


def packaged_parent(folder: Path) -> tuple[Path, Session]:
    """A copy of the packaged parent log, and what it holds."""
    path = folder / PARENT
    with as_file(files("dsh_tasks.data") / PARENT) as packaged:
        shutil.copyfile(packaged, path)
    return path, log_format.read(path)


@contextlib.contextmanager
def house(folder: Path, view: View, model: str | None) -> Iterator[Settings]:
    """A server and a worker on free ports, with data that goes; the user's installation is not touched."""
    server = embedded.start(folder=folder / "server", under=processes.tether())
    try:
        # A prefix that nobody sets: only what stands here counts, not the knobs of the user's installation.
        settings = load(_env_prefix="DSH_TASKS_DEMO_", redis_url=server.url, model=model)
        worker = processes.start(
            processes.worker_command(concurrency=SLOTS, loglevel="WARNING", name="demo"),
            env=_environment(server.url, folder, model),
            output=folder / "worker.log",
        )
        try:
            view.line(f"server: {server.url} (temporary), worker: pid {worker.pid}, {SLOTS} slots")
            _await_worker(settings, worker)
            yield settings
        finally:
            processes.stop([worker], within_s=STOP_WITHIN_S)
    finally:
        server.stop()


def _environment(url: str, folder: Path, model: str | None) -> dict[str, str]:
    ours = {"DSH_TASKS_REDIS_URL": url, "DSH_TASKS_STATE_DIR": str(folder)}
    if model is not None:
        ours["DSH_TASKS_MODEL"] = model
    env = processes.environment(**ours)
    return {name: value for name, value in env.items() if name in ours or not name.startswith("DSH_TASKS_")}


def _await_worker(settings: Settings, worker: subprocess.Popen[bytes]) -> None:
    app = make_app(settings)
    until_s = time.monotonic() + WORKER_WITHIN_S
    while not answering(app):
        if worker.poll() is not None or time.monotonic() > until_s:
            raise StoreUnavailable("the demo's worker did not start; dsh-tasks worker shows why")
    app.close()


async def _play(
    settings: Settings, parent: Session, log: Path, view: View, *, offline: bool, until_s: float
) -> tuple[Played, dict[str, str]]:
    config = read_config({})
    async with AsyncClient.connect(settings, registry=config.registry) as client:
        play = Play(client, config, parent, view, offline=offline)
        view.heading("the parent delegates by its tools")
        played = await play.run(PARTS, log, until_s=until_s)
        return played, await models_of(client, played.tasks)


def _introduce(view: View, parent: Session, model: str) -> None:
    turns = parent.turns()
    is_open = any(not turn.is_completed for turn in turns)
    view.line(
        f"parent: session {parent.header.id!r}, packaged, written by the real harness: "
        f"{render.counted(len(turns) - is_open, 'completed turn')}{', then an open one' if is_open else ''}"
    )
    view.line(f"model: {model}")


def _conclude(view: View, played: Played, models: Mapping[str, str]) -> None:
    view.heading("what each came to")
    for one in played.delegated:
        where = "in the background" if one.part.in_background else "in the foreground"
        view.line(f"{one.part.tool}, {where}: {one.part.label} ({one.part.why})")
        for line in one.answer.splitlines():
            view.line(f"    {line}")
    view.heading("notices, written into the parent's log by its loop and acknowledged")
    told = [line for notice in played.notices for line in notice["text"].splitlines()]
    for line in told or ["none: what was read or killed is not told again"]:
        view.line(line)
    view.heading("what each child inherited")
    view.rows(*inherited_rows(played.tasks, models))


def inherited_rows(tasks: Sequence[Task], models: Mapping[str, str]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: which seed each child got."""
    rows = [
        [
            f"{'  ' * level}{render.label_of(task)}",
            task.provider,
            str(task.seed_turns),
            str(task.seed_events),
            str(task.seed_bytes),
            models.get(task.id) or "-",
        ]
        for level, task in render.levels(tasks)
    ]
    return ["child", "provider", "turns", "events", "bytes", "model"], rows


def played_value(played: Played, models: Mapping[str, str]) -> dict[str, Any]:
    """What the demo came to, as JSON."""
    return {
        "delegated": [
            {
                "tool": one.part.tool,
                "label": one.part.label,
                "in_background": one.part.in_background,
                "is_killed": one.part.is_killed,
                "task_id": one.task_id,
                "answer": one.answer,
            }
            for one in played.delegated
        ],
        "kills": [receipt.value for receipt in played.receipts],
        "notices": played.notices,
        "tasks": [{**render.task_value(task), "model": models.get(task.id, "")} for task in played.tasks],
    }
