"""Session: how a command reaches the installation, and what it is given again and again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from dsh_tasks.client import AsyncClient
from dsh_tasks.config import load_config
from dsh_tasks.settings import load

TaskArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")]
OwnerOption = Annotated[
    str | None, typer.Option("--owner", help="Act as this session; without it as the operator, who sees all.")
]


@asynccontextmanager
async def connected(owner: str | None) -> AsyncIterator[AsyncClient]:
    """A client of the installation with the providers of its settings file."""
    settings = load()
    config = load_config(settings=settings)
    async with AsyncClient.connect(
        settings, registry=config.registry, owner=owner, tool_names=config.tool_names
    ) as client:
        yield client
