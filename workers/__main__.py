"""`python -m workers`: one worker process; `dsh-tasks worker` starts it."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from dsh_tasks.errors import DshTasksError
from dsh_tasks.settings import load
from dsh_tasks.store.locate import located
from workers.app import build, serve, worker_name
from workers.start_checks import check_queue, check_server

QUIET = ("httpx", "httpx2", "httpcore", "openai", "anthropic")
"""They log each request's URL at INFO, where a base URL may hold a password."""

HELD = ("DSH_TASKS_WEBHOOK_URL", "DSH_TASKS_WEBHOOK_SECRET")
"""Nobody's but the worker's own: the tools of its children inherit the environment."""


def main(argv: list[str] | None = None) -> int:
    """Parse, build, serve. Exit codes as in the README."""
    parser = argparse.ArgumentParser(prog="dsh-tasks worker")
    parser.add_argument("--concurrency", type=int, default=None)
    parser.add_argument("--loglevel", default="WARNING")
    parser.add_argument("--name", default=None, help="worker name, unique in the installation")
    given = parser.parse_args(argv)
    logging.basicConfig(
        level=given.loglevel.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        settings = located(load())
        # Before anything is built: what starts a process hands this environment on.
        for name in HELD:
            os.environ.pop(name, None)
        if given.concurrency is not None:
            settings = settings.model_copy(update={"concurrency": given.concurrency})
        check_server(settings)
        host = build(settings)
        check_queue(host.app)
    except DshTasksError as error:
        print(f"dsh-tasks worker: {error.message}", file=sys.stderr)
        return error.exit_code
    if settings.model is None and not any(name.endswith("_API_KEY") for name in os.environ):
        logging.getLogger(__name__).warning("no model and no key: children use the offline model")
    slots = settings.concurrency
    name = given.name or worker_name().replace(":", "-")
    return serve(
        host,
        [
            *("--pool", "threads", "--concurrency", str(slots), "--events"),
            *("--without-gossip", "--without-mingle"),
            *("--hostname", f"{name}@%h", "--loglevel", given.loglevel.upper()),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
