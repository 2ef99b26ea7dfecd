"""Search: lines of files below the working folder that fit a pattern. Runs in a helper process.

A pattern can be made to run for ever: only the end of its process stops it, and the worker sees to that.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator

from workers.engines.agent.fault import ToolFault
from workers.engines.agent.workspace.rooted import faults_of, folder_of, is_binary

LINE_CHARACTERS = 300
"""A longer line is shown up to here."""
MARK_BYTES = 400
LEFT_OUT = (".git", ".hg", ".svn")
"""Folders of version control: large, and no work of anybody."""


def search(
    root: str, pattern: str, path: str, files: str, limit: int, file_bytes: int, limit_bytes: int
) -> str:
    """`path:line: text` for each line that fits the regular expression, in the order of the paths.

    `files` is a shell pattern for names. Binary files, links and files of more than `file_bytes` are
    passed over; the answer says how many were too large.
    """
    try:
        wanted = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFault(f"the pattern is no regular expression: {error}") from None
    lines: list[str] = []
    room, is_full = limit_bytes - MARK_BYTES, False
    found = Found(root, path, files, file_bytes)
    for line in found.lines(wanted):
        room -= len(line.encode("utf-8", "replace")) + 1
        if len(lines) == limit or room < 0:
            is_full = True
            break
        lines.append(line.encode("utf-8", "replace").decode())
    if not lines and not is_full:
        lines.append("[no line fits]")
    if is_full:
        lines.append(f"[{len(lines)} lines shown, there are more; narrow pattern, path or files]")
    if found.too_large:
        lines.append(f"[{found.too_large} files of more than {file_bytes} bytes were passed over]")
    return "\n".join(lines)


class Found:
    """One walk over the files below a path."""

    def __init__(self, root: str, path: str, files: str, file_bytes: int) -> None:
        self._root = root
        self._path = path
        self._files = files
        self._file_bytes = file_bytes
        self.too_large = 0

    def lines(self, wanted: re.Pattern[str]) -> Iterator[str]:
        """Each line that fits, with its place."""
        for name, text in self._texts():
            # Lines as read counts them: a form feed ends none.
            lines = text.removesuffix("\n").split("\n") if text else []
            for number, line in enumerate((line.removesuffix("\r") for line in lines), 1):
                if wanted.search(line):
                    yield f"{name}:{number}: {line[:LINE_CHARACTERS]}"

    def _texts(self) -> Iterator[tuple[str, str]]:
        with folder_of(self._root, self._path) as (at, name), faults_of(self._path):
            if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                if (text := self._text(at, name)) is not None:
                    yield self._path, text
                return
            for folder, below, names, fd in os.fwalk(name, dir_fd=at, follow_symlinks=False):
                below[:] = sorted(one for one in below if one not in LEFT_OUT)
                inner = os.path.relpath(folder, name)
                for one in sorted(fnmatch.filter(names, self._files)):
                    if (text := self._text(fd, one)) is not None:
                        yield os.path.normpath(os.path.join(self._path, inner, one)), text  # noqa: PTH118

    def _text(self, at: int, name: str) -> str | None:
        """The text of a file; None for what is passed over."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
        except OSError:
            return None
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            try:
                data = file.read(self._file_bytes + 1)
            except OSError:
                return None
        if is_binary(data):
            return None
        if len(data) > self._file_bytes:
            self.too_large += 1
            return None
        return data.decode("utf-8", "replace")
