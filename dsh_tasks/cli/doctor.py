"""`doctor`: looks at everything that must hold, and tells each finding with its mend."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from celery import Celery
from rich.console import Console
from rich.text import Text

from dsh_tasks.cli import checks
from dsh_tasks.cli.border import DONE, FAILED, AsJson, awaited, emit, say
from dsh_tasks.cli.render import counted, is_terminal
from dsh_tasks.config import load_config
from dsh_tasks.errors import ConfigRefused, StoreUnavailable
from dsh_tasks.queue import make_app
from dsh_tasks.settings import Settings, load
from dsh_tasks.store import Link, Outbox, OutboxState, connect, masked
from dsh_tasks.store.fitness import Finding, Grade, ServerFacts, fail, ok, server_findings
from dsh_tasks.store.locate import located, recall, state_file
from dsh_tasks.store.scripts import NAMES
from dsh_tasks.store.scripts import load as load_script

PING_S = 1.0
SERVER = "server"
COLOURS = {Grade.OK: "green", Grade.NOTE: "cyan", Grade.WARNING: "yellow", Grade.FAIL: "bold red"}


def doctor(as_json: AsJson = False) -> int:
    """Check that everything is fit.

    Server, queue, workers, model, settings file: each finding with its mend.
    Ends with 0 when nothing fails, 1 otherwise, 5 when the server is not reachable.
    """
    findings: list[Finding] = []
    for finding in _findings(load()):
        findings.append(finding)
        if not as_json:
            _print(finding)
    failed = [finding for finding in findings if finding.grade is Grade.FAIL]
    if as_json:
        emit({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        say(counted(len(failed), "failure") if failed else "nothing fails")
    if any(finding.check == SERVER for finding in failed):
        return StoreUnavailable.exit_code
    return FAILED if failed else DONE


def _print(finding: Finding) -> None:
    mend = f"\n         mend: {finding.mend}" if finding.mend else ""
    if not is_terminal():
        say(f"{finding.grade.value:8} {finding.check}: {finding.seen}{mend}")
        return
    line = Text(f"{finding.grade.value:8} ", style=COLOURS[finding.grade])
    line.append(f"{finding.check}: ", style="bold").append(f"{finding.seen}{mend}", style="default")
    Console(highlight=False).print(line)


def _findings(settings: Settings) -> Iterator[Finding]:
    """Each finding as it is made: a person sees what takes long."""
    yield from _config_findings(settings)
    yield checks.model_finding(settings, os.environ)
    try:
        settings = located(settings)
    except StoreUnavailable as error:
        yield fail(SERVER, error.facts["why"], "dsh-tasks up, or set DSH_TASKS_REDIS_URL")
        return
    yield from _server_findings(settings)


def _config_findings(settings: Settings) -> Iterator[Finding]:
    try:
        config = load_config(settings=settings)
    except ConfigRefused as error:
        yield fail("settings file", error.message, "correct the file that DSH_TASKS_CONFIG names")
        return
    yield from checks.config_findings(config, settings.config)


def _server_findings(settings: Settings) -> Iterator[Finding]:
    assert settings.redis_url is not None
    where = masked(settings.redis_url)
    started_s = time.monotonic()
    try:
        facts = awaited(_facts(settings))
    except StoreUnavailable as error:
        mend = "start it, or correct DSH_TASKS_REDIS_URL (address, password, TLS, rights)"
        yield fail(SERVER, f"{where}: {error.facts['why']}", mend)
        return
    running = recall()
    found = f" (found by {state_file()})" if running and running.redis_url == settings.redis_url else ""
    yield ok(SERVER, f"{where} answers in {(time.monotonic() - started_s) * 1000:.0f} ms{found}")
    yield from server_findings(facts, replicas=settings.replicas)
    yield ok("prefix and queue", f"{settings.prefix!r}, {settings.queue!r}")
    yield _scripts_finding(settings)
    yield _webhook_finding(settings)
    yield from _queue_findings(settings)


async def _facts(settings: Settings) -> ServerFacts:
    assert settings.redis_url is not None
    link = _link(settings)
    try:
        info: dict[str, Any] = await link.within(link.client.info("everything"))
        try:
            config = await link.command("CONFIG", "GET", "appendfsync")
        except StoreUnavailable:
            # Hosted servers keep CONFIG for themselves.
            return ServerFacts(info, None)
        return ServerFacts(info, _value_of(config))
    finally:
        await link.close()


def _webhook_finding(settings: Settings) -> Finding:
    try:
        state = awaited(_outbox(settings))
    except StoreUnavailable as error:
        return fail("webhook", error.facts["why"], "see the findings about server and scripts")
    return checks.webhook_finding(settings, state)


async def _outbox(settings: Settings) -> OutboxState:
    link = _link(settings)
    try:
        return await Outbox(link, settings).state()
    finally:
        await link.close()


def _link(settings: Settings) -> Link:
    assert settings.redis_url is not None
    timeout_ms = settings.call_timeout_ms
    return Link(connect(settings.redis_url, timeout_ms=timeout_ms, pool_size=2), timeout_ms=timeout_ms)


def _value_of(config: Any) -> str | None:
    """The one value of a CONFIG GET, whether redis-py made a dict of it or not."""
    values = list(config.values()) if isinstance(config, dict) else list(config)[1:]
    if not values:
        return None
    return values[0].decode() if isinstance(values[0], bytes) else str(values[0])


def _scripts_finding(settings: Settings) -> Finding:
    async def load_all() -> None:
        link = _link(settings)
        try:
            for name in NAMES:
                await link.command("SCRIPT", "LOAD", load_script(name).text)
        finally:
            await link.close()

    try:
        awaited(load_all())
    except StoreUnavailable as error:
        mend = "allow this user SCRIPT, EVALSHA and what the scripts call"
        return fail("scripts", error.facts["why"], mend)
    return ok("scripts", f"{counted(len(NAMES), 'script')} load")


def _queue_findings(settings: Settings) -> Iterator[Finding]:
    assert settings.effective_broker_url is not None
    where = masked(settings.effective_broker_url)
    app = make_app(settings)
    try:
        waiting = _waiting(app, settings.queue)
    except Exception as error:  # noqa: BLE001 - kombu raises whatever its transport does
        mend = "correct DSH_TASKS_BROKER_URL, or leave it out: the queue is then on the same server"
        yield fail("queue", f"{where}: {type(error).__name__}", mend)
        return
    yield ok("queue", f"{where}, {counted(waiting, 'message')} waiting")
    try:
        answers = app.control.ping(timeout=PING_S)
    except Exception as error:  # noqa: BLE001 - likewise
        yield fail("workers", f"asking failed: {type(error).__name__}", "see the finding about the queue")
        return
    yield checks.workers_finding([name for answer in answers for name in answer])


def _waiting(app: Celery, queue: str) -> int:
    with app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=3)
        # A queue that nobody has declared yet is empty, not an error.
        return int(connection.default_channel.client.llen(queue))
