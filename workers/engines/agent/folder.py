"""Folder: where a child works on this worker; decided before its model is asked."""

from __future__ import annotations

import asyncio
import os

from dsh_tasks.errors import OptionRefused
from dsh_tasks.workspace import WorkspaceConfig
from workers.engines.base import Child


async def working_folder(child: Child, workspace: WorkspaceConfig | None) -> str | None:
    """The child's working folder; None where nothing needs one.

    What its start named, else what its parent's log recorded, else the operator's. The operator's folder
    is the top: what is named must lie in it, what is only recorded counts where it does. Raises
    OptionRefused for one that this worker has not got.
    """
    return await asyncio.to_thread(_chosen, child, workspace)


def _chosen(child: Child, workspace: WorkspaceConfig | None) -> str | None:
    top = None if workspace is None else workspace.folder
    named = child.policy.working_folder
    if named is not None:
        folder = _there(named, "the start named it")
        if top is not None and not _is_in(folder, top):
            raise OptionRefused("working_folder", f"{named!r} is not in {top!r}, the workers' workspace")
        return folder
    if workspace is None:
        return None
    recorded = child.header.cwd
    if top is not None and (recorded is None or not _is_in(recorded, top)):
        return _there(top, "the workers' settings file names it")
    if recorded is None:
        raise OptionRefused(
            "working_folder", "none is known: name one at the start, or folder under [agent.workspace]"
        )
    return _there(recorded, "the parent's log records it")


def _there(folder: str, why: str) -> str:
    if not os.path.isabs(folder):  # noqa: PTH117 - a path of another machine perhaps
        raise OptionRefused("working_folder", f"{folder!r} is no absolute path; {why}")
    if not os.path.isdir(folder):  # noqa: PTH112
        raise OptionRefused(
            "working_folder",
            f"this worker has no folder {folder!r} ({why}); make it there, or name another at the start",
        )
    return os.path.realpath(folder)


def _is_in(folder: str, top: str) -> bool:
    return os.path.commonpath([os.path.realpath(folder), os.path.realpath(top)]) == os.path.realpath(top)
