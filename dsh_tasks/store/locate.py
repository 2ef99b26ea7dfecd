"""Locate: where the server is. Environment first, then the state file that `dsh-tasks up` leaves."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.settings import Settings

HINT = "no server known: set DSH_TASKS_REDIS_URL or start one with `dsh-tasks up`"


@dataclass(frozen=True, slots=True)
class Running:
    """What `up` started: the server's URL and the pid of the `up` process."""

    redis_url: str
    pid: int
    prefix: str
    queue: str


def state_file() -> Path:
    """The state file: `server.json` in the user's state folder, or in `DSH_TASKS_STATE_DIR`."""
    given = os.environ.get("DSH_TASKS_STATE_DIR")
    if given:
        return Path(given) / "server.json"
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "dsh-tasks" / "server.json"


def remember(running: Running) -> Path:
    """Leave the state file, readable by its user only."""
    path = state_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        json.dump(asdict(running), out)
    fresh.replace(path)
    return path


def forget(pid: int) -> None:
    """Remove the state file if this process left it."""
    running = recall()
    if running is not None and running.pid == pid:
        state_file().unlink(missing_ok=True)


def recall() -> Running | None:
    """What the state file says; None where there is none or its process is gone."""
    try:
        raw = json.loads(state_file().read_text("utf-8"))
        running = Running(raw["redis_url"], int(raw["pid"]), raw["prefix"], raw["queue"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        os.kill(running.pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return running
    return running


def located(settings: Settings) -> Settings:
    """`settings` with a server URL. Raises StoreUnavailable with the way out where none is known."""
    if settings.redis_url is not None:
        return settings
    running = recall()
    if running is None:
        raise StoreUnavailable(HINT)
    return settings.model_copy(
        update={"redis_url": running.redis_url, "prefix": running.prefix, "queue": running.queue}
    )
