"""Checks: is this installation fit? Each gives a finding: how it stands, what was seen, and the mend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsh_tasks import signing
from dsh_tasks.cli.render import counted
from dsh_tasks.config import Config
from dsh_tasks.settings import Settings
from dsh_tasks.store import OutboxState
from dsh_tasks.store.fitness import Finding, Grade, fail, ok, warning

KEYS_OF_MODELS = ("DEEPSEEK_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def workers_finding(names: list[str]) -> Finding:
    """Who answers on the queue's control channel."""
    if not names:
        return fail("workers", "none answers: nothing runs", "start one: dsh-tasks worker, or dsh-tasks up")
    shown = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")  # noqa: PLR2004
    return ok("workers", f"{counted(len(names), 'worker')}: {shown}")


def model_finding(settings: Settings, environment: Mapping[str, str]) -> Finding:
    """What a child of no other wish would use, as far as this shell's environment tells."""
    if settings.model is not None:
        return ok("model", f"{settings.model} (DSH_TASKS_MODEL)")
    keys = [name for name in KEYS_OF_MODELS if environment.get(name)]
    if keys:
        return ok("model", f"the parent's route, where one of these keys fits it: {', '.join(keys)}")
    mend = "set DSH_TASKS_MODEL and its key for the workers, for instance DEEPSEEK_API_KEY"
    return Finding("model", Grade.NOTE, "offline: no model and no key in this environment", mend)


def webhook_finding(settings: Settings, state: OutboxState) -> Finding:
    """Whether endings are sent, and whether any is undelivered. Neither path nor secret is told."""
    url = settings.webhook_url
    if url is None and not state.wanted and not state.waiting:
        return ok("webhook", "not set")
    where = signing.shown(url) if url is not None else "set for the workers, not in this environment"
    sent = f"{where}; {state.delivered} sent, {state.waiting} waiting, {state.dropped} given up"
    if state.gone_ms and not state.wanted:
        mend = "mend the receiver, then give the workers another DSH_TASKS_WEBHOOK_URL or _SECRET"
        return warning("webhook", f"{sent}; the endpoint answered 410 and is told nothing any more", mend)
    if not state.wanted:
        return warning("webhook", f"{sent}; no worker sends", "give the workers the same settings")
    if state.waiting and state.failed_ms > state.delivered_ms:
        return warning("webhook", f"{sent}; the last try: {state.failed_why}", "see what the receiver says")
    if url is not None and signing.is_open(url):
        return warning("webhook", f"{sent}; labels and owners travel in the clear", "use https")
    return ok("webhook", sent)


def config_findings(config: Config, path: str | None) -> Iterator[Finding]:
    """The settings file, and what it makes available."""
    yield ok("settings file", path if path is not None else "none, the defaults hold")
    yield ok("providers", ", ".join(_provider_words(config)))
    yield ok("tools", ", ".join(f"{tool.tool_name} ({tool.provider})" for tool in config.tools) or "none")


def _provider_words(config: Config) -> Iterator[str]:
    for provider in config.registry:
        turns = provider.max_completed_turns
        yield provider.name if turns is None else f"{provider.name} ({counted(turns, 'turn')})"
