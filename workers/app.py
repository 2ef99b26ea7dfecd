"""App: builds a worker process and hands everything to everyone; the only such place."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from celery import Celery, bootsteps
from celery.signals import worker_ready, worker_shutdown, worker_shutting_down

from dsh_tasks.client import Publisher
from dsh_tasks.config import Config, load_config
from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.queue import Message, make_app, publish
from dsh_tasks.settings import Settings
from dsh_tasks.store import Link, Store, Wakeups, connect, connect_sync
from dsh_tasks.task import Status
from dsh_tasks.webhook import Endpoint
from workers import tasks
from workers.collecting import settle_down
from workers.delegation import Delegation
from workers.engines.agent.engine import AgentEngine
from workers.engines.agent.mcp_file import load_servers
from workers.engines.agent.model import Models
from workers.engines.agent.own_children import AtEnd
from workers.engines.agent.patience import Patience
from workers.engines.agent.prices import prices_of
from workers.engines.base import Engine
from workers.engines.scripted import NoopEngine, ScriptedEngine
from workers.events import Batching
from workers.heartbeat import Heartbeat
from workers.hooks import Hooks
from workers.loop import EventLoop
from workers.reaper import Reaper
from workers.runner import Runner

log = logging.getLogger(__name__)

LEAVE_WITHIN_S = 15.0
END_WITHIN_S = 25.0
"""After this a process that was told to end does so, whatever still hangs."""
EXIT_HUNG = 70
EXIT_CONSUMER_LOST = 71
"""Celery's consumer crashed; a supervisor starts the worker again."""


def worker_name() -> str:
    """Host and pid: what a record names as its worker."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Host:
    """One worker process: event loop, runner, heartbeat, reaper, control listener, sender of endings."""

    def __init__(
        self, settings: Settings, config: Config, *, engines: Mapping[str, Engine] | None = None
    ) -> None:
        assert settings.redis_url is not None
        self.settings = settings
        self.leaving = False
        self.app: Celery = make_app(settings)
        self.loop = EventLoop()
        url, timeout_ms = settings.redis_url, settings.call_timeout_ms
        link = Link(connect(url, timeout_ms=timeout_ms), timeout_ms=timeout_ms, replicas=settings.replicas)
        store = Store(link, settings)
        self.wakeups = Wakeups(connect(url, timeout_ms=timeout_ms, pool_size=2, listens=True))
        self._publishing = make_app(settings, publishes=True)
        self.publisher = Publisher(self._publishing, timeout_ms=timeout_ms)
        self.runner = Runner(
            store,
            engines if engines is not None else build_engines(config, settings),
            worker=worker_name(),
            model=settings.model,
        )
        delegation = Delegation(store, self.wakeups, self.publisher, self.runner, config)
        self.runner.use_tools(delegation.tools_for, delegation.dispose_foreground)
        self.heartbeat = Heartbeat(connect_sync(url, timeout_ms=timeout_ms), settings, self.runner, self.loop)
        self.reaper = Reaper(connect_sync(url, timeout_ms=timeout_ms), settings, self._publish)
        endpoint = Endpoint.of(settings)
        self.hooks = Hooks(store.link, settings, endpoint) if endpoint is not None else None
        self._announced = asyncio.Event()
        self._sending: Future[None] | None = None
        tasks.register(self.app, self.run)

    def start(self) -> None:
        """Start the loop and the threads beside it."""
        self.loop.start()
        self._sending = self.loop.submit(self._send_endings())
        self.loop.submit(self._listen())
        self.heartbeat.start()
        self.reaper.start()

    def run(self, task_id: str) -> str:
        """What a Celery slot does: park until the child has ended."""
        return self.loop.submit(self._run(task_id)).result()

    async def _run(self, task_id: str) -> str:
        # What ends here must find that endings are wanted.
        await self._announced.wait()
        return await self.runner.run(task_id)

    async def _send_endings(self) -> None:
        if self.hooks is not None:
            await self.hooks.announce()
        self._announced.set()
        if self.hooks is not None:
            await self.hooks.run()

    def leave(self) -> None:
        """Hand everything back; called from Celery's shutdown, so that a warm one ends at once."""
        if self.leaving:
            return
        self.leaving = True
        # A server or broker that is frozen must not hold the process: its leases decide then.
        last_call = threading.Timer(END_WITHIN_S, os._exit, (EXIT_HUNG,))
        last_call.daemon = True
        last_call.start()
        self.loop.loop.call_soon_threadsafe(self.runner.leave)

    def stop(self) -> None:
        """End what `start` began, after the attempts are gone."""
        try:
            self.loop.submit(self.runner.idle()).result(timeout=LEAVE_WITHIN_S)
        except TimeoutError:
            log.warning("attempts that did not stop are left to their leases")
        try:
            self.loop.submit(self._publish_given_back()).result(timeout=LEAVE_WITHIN_S)
        except (TimeoutError, StoreUnavailable):
            log.warning("what was handed back is published by another worker's reaper")
        if self._sending is not None:
            self._sending.cancel()
        self.heartbeat.stop()
        self.reaper.stop()
        self.loop.stop()
        self.publisher.close()

    async def _listen(self) -> None:
        async for payload in self.wakeups.messages(self.runner.store.keys.control):
            for task_id in json.loads(payload):
                self.runner.stop(task_id)

    def _publish(self, message: Message) -> None:
        publish(self._publishing, message)

    async def _publish_given_back(self) -> None:
        """Only after this worker consumes no more: it would eat its own messages."""
        for task in await self.runner.store.tasks(self.runner.given_back):
            if task.status is Status.QUEUED:
                message = Message(task.id, task.attempt, task.label, task.provider, task.depth, task.owner)
                await self.publisher.publish(message)
                await self.runner.store.mark_published(task.id)


def build_engines(config: Config, settings: Settings) -> dict[str, Engine]:
    """The engines that a worker has."""
    patience = Patience(
        tries=settings.model_tries,
        first_pause_ms=settings.model_first_pause_ms,
        longest_pause_ms=settings.model_longest_pause_ms,
        silence_ms=settings.model_silence_ms,
    )
    models = Models(context_window=config.agent.context_window, prices=prices_of(config.agent.prices))
    return {
        "agent": AgentEngine(
            tools=config.agent.tools,
            models=models,
            patience=patience,
            result_bytes=config.agent.tool_result_bytes,
            structured_repair_turns=config.agent.structured_repair_turns,
            children_at_end=AtEnd(config.agent.children_at_end),
            workspace=config.agent.workspace,
            mcp_servers=load_servers(config.agent.mcp_servers) if config.agent.mcp_servers else (),
            mcp_call_timeout_ms=config.agent.mcp_call_timeout_ms,
        ),
        "noop": NoopEngine(),
        "scripted": ScriptedEngine(),
    }


def build(settings: Settings) -> Host:
    """A host from settings and settings file. Raises ConfigRefused."""
    return Host(settings, load_config(settings.config, settings=settings))


def serve(host: Host, arguments: list[str]) -> int:
    """Run Celery's worker in this process until it is told to end; returns the exit code."""

    told_to_end = threading.Event()

    def begin(**_: Any) -> None:
        settle_down()
        host.start()

    def leave(**_: Any) -> None:
        told_to_end.set()
        host.leave()

    def end(**_: Any) -> None:
        host.stop()

    worker_ready.connect(begin, weak=False)
    worker_shutting_down.connect(leave, weak=False)
    worker_shutdown.connect(end, weak=False)
    host.app.steps["worker"].add(leaving_step(host))
    host.app.steps["consumer"].add(Batching)
    try:
        host.app.worker_main(["worker", *arguments])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    else:
        code = 0
    if not told_to_end.is_set() and code == 0:
        # kombu's consumer can crash as its broker comes back (seen: restore_unacked), and says 0.
        log.error("the queue's consumer ended by itself; children were handed back")
        return EXIT_CONSUMER_LOST
    return code


def leaving_step(host: Host) -> type[bootsteps.StartStopStep]:
    """A step of Celery's worker that ends before its pool does, however the end came.

    The pool waits for its threads, and these for their children: they must be handed back first.
    """

    class Leaving(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = ("celery.worker.components:Pool",)

        def start(self, _worker: Any) -> None:
            """Nothing: the host starts when the worker is ready."""

        def stop(self, _worker: Any) -> None:
            host.leave()

        def terminate(self, _worker: Any) -> None:
            host.leave()

    return Leaving
