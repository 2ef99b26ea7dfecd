"""Rooted: paths below one folder. A path is resolved first and then walked without following any link.

What is checked is so what is opened, also where links change meanwhile. Runs in a helper process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from workers.engines.agent.fault import ToolFault

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
BINARY_LOOK_BYTES = 8_192


def parts_of(root: str, path: str) -> list[str]:
    """The names from `root` to where `path` leads. Raises ToolFault where that is outside."""
    if "\0" in path:
        raise ToolFault("a path holds no NUL")
    top = os.path.realpath(root)
    real = os.path.realpath(os.path.join(top, path))  # noqa: PTH118 - names are taken as they are
    below = os.path.relpath(real, top)
    if below == os.pardir or below.startswith(os.pardir + os.sep):
        raise ToolFault(f"{shown(path)} leads out of the working folder")
    return [] if below == os.curdir else below.split(os.sep)  # noqa: PTH206 - see above


@contextlib.contextmanager
def folder_of(root: str, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that holds `path`, open, and the name in it (`.` for the root itself).

    `make` makes the folders that lack. Raises ToolFault for what is outside or no folder.
    """
    parts = parts_of(root, path)
    with faults_of(path):
        at = os.open(os.path.realpath(root), _FOLDER)
    try:
        for part in parts[:-1]:
            with faults_of(path):
                below = _below(at, part, make=make)
            os.close(at)
            at = below
        yield at, parts[-1] if parts else os.curdir
    finally:
        os.close(at)


def _below(at: int, part: str, *, make: bool) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=at)
    return os.open(part, _FOLDER, dir_fd=at)


@contextlib.contextmanager
def file_at(at: int, name: str, path: str) -> Iterator[int]:
    """A regular file, open for reading. Raises ToolFault for everything else."""
    with faults_of(path):
        # Not blocking: a named pipe without a writer would hold us for ever.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise ToolFault(f"{shown(path)} is a folder")
        if not stat.S_ISREG(mode):
            raise ToolFault(f"{shown(path)} is no regular file")
        yield fd
    finally:
        os.close(fd)


def is_binary(head: bytes) -> bool:
    """Whether a file that begins so is no text."""
    return b"\0" in head[:BINARY_LOOK_BYTES]


@contextlib.contextmanager
def faults_of(path: str) -> Iterator[None]:
    """Turns what the system says into words for the model."""
    try:
        yield
    except OSError as error:
        words = {
            errno.ENOENT: "does not exist",
            errno.ENOTDIR: "leads through something that is no folder",
            errno.ELOOP: "is a link that changed meanwhile",
            errno.EACCES: "may not be accessed",
            errno.ENXIO: "is no regular file",
        }
        why = words.get(error.errno or 0) or f"cannot be used: {error.strerror}"
        raise ToolFault(f"{shown(path)} {why}") from None


def shown(path: str) -> str:
    """A path as answers name it."""
    return repr(path if len(path) <= 200 else path[:200] + "…")  # noqa: PLR2004 - a line's worth
