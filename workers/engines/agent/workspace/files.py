"""Files: read, write, edit and list below the working folder. Runs in a helper process."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from typing import BinaryIO

from workers.engines.agent.fault import ToolFault
from workers.engines.agent.workspace.rooted import (
    BINARY_LOOK_BYTES,
    faults_of,
    file_at,
    folder_of,
    is_binary,
    shown,
)

LINE_BYTES = 4_000
"""A longer line is shown up to here."""
SKIP_BYTES = 256 * 1024 * 1024
"""So far a read looks for the line that it begins at."""
LOOK_AT_ENTRIES = 100_000
"""Entries of a folder that are sorted; more are not looked at."""
PLACES_NAMED = 5
MARK_BYTES = 200
"""Kept free for the line that tells how to go on."""


def read(root: str, path: str, offset: int, limit: int, limit_bytes: int) -> str:
    """Lines from the `offset`-th (from 1), `limit` at most and within `limit_bytes`; says how to go on."""
    with folder_of(root, path) as (at, name), file_at(at, name, path) as fd:
        size = os.fstat(fd).st_size
        with os.fdopen(fd, "rb", closefd=False) as file:
            if is_binary(file.peek(BINARY_LOOK_BYTES)):
                raise ToolFault(f"{shown(path)} is no text ({size} bytes)")
            skipped = _skip(file, offset - 1)
            if skipped < offset - 1 or (offset > 1 and not file.peek(1)):
                raise ToolFault(f"{shown(path)} has {skipped} lines, there is no line {offset}")
            lines, has_more = _page(file, limit, limit_bytes - MARK_BYTES)
    if not lines:
        return "[the file is empty]"
    text = "".join(lines)
    if not has_more:
        return text
    end = "" if text.endswith("\n") else "\n"
    last = offset + len(lines) - 1
    return f"{text}{end}[lines {offset} to {last} of a file of {size} bytes; continue with offset {last + 1}]"


def _skip(file: BinaryIO, lines: int) -> int:
    """Pass over so many lines; how many there were, a last one without its end among them."""
    passed = done = 0
    is_ended = True
    while passed < lines:
        piece = file.readline(1 << 16)
        done += len(piece)
        if done > SKIP_BYTES:
            raise ToolFault(f"that line lies beyond the first {SKIP_BYTES} bytes; use search or shell")
        if not piece:
            return passed + (not is_ended)
        is_ended = piece.endswith(b"\n")
        passed += is_ended
    return passed


def _page(file: BinaryIO, limit: int, room: int) -> tuple[list[str], bool]:
    """The next lines that fit, and whether there are more."""
    lines: list[str] = []
    while len(lines) < limit:
        line = _line(file)
        room -= len(line.encode())
        if not line or (room < 0 and lines):
            return lines, bool(line)
        lines.append(line)
    return lines, bool(file.read(1))


def _line(file: BinaryIO) -> str:
    """The next line, the end of a long one left out; nothing at the end of the file."""
    head = file.readline(LINE_BYTES)
    if head.endswith(b"\n") or len(head) < LINE_BYTES:
        return head.decode("utf-8", "replace")
    left = 0
    while piece := file.readline(1 << 16):
        left += len(piece)
        if piece.endswith(b"\n"):
            break
    text = head.decode("utf-8", "ignore")
    return f"{text}[line cut: {LINE_BYTES} of {LINE_BYTES + left} bytes shown]\n" if left else text


def write(root: str, path: str, content: str, file_bytes: int) -> str:
    """Write a file whole; what stood there before is replaced in one step."""
    data = _encoded(content, file_bytes)
    if path.endswith("/"):
        raise ToolFault(f"{shown(path)} names a folder; name the file in it")
    with folder_of(root, path, make=True) as (at, name):
        _replace(at, name, path, data)
    return f"wrote {len(data)} bytes to {shown(path)}"


def edit(root: str, path: str, old: str, new: str, file_bytes: int) -> str:
    """Replace the one place where `old` stands by `new`."""
    if not old:
        raise ToolFault("old is empty: say which text to replace, or use write")
    if old == new:
        raise ToolFault("old and new are the same")
    with folder_of(root, path) as (at, name):
        text = _text_of(at, name, path, file_bytes)
        count = len(re.findall(f"(?={re.escape(old)})", text))
        if count != 1:
            raise ToolFault(_misfit(text, old, count, path))
        _replace(at, name, path, _encoded(text.replace(old, new), file_bytes))
        return f"replaced one text at line {_line_number(text, text.index(old))} of {shown(path)}"


def _text_of(at: int, name: str, path: str, file_bytes: int) -> str:
    with file_at(at, name, path) as fd, os.fdopen(fd, "rb", closefd=False) as file:
        data = file.read(file_bytes + 1)
    if len(data) > file_bytes:
        raise ToolFault(f"{shown(path)} is larger than {file_bytes} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFault(f"{shown(path)} is no text in UTF-8") from None


def _misfit(text: str, old: str, count: int, path: str) -> str:
    """Why a text is not the one place to replace."""
    if count:
        places, start = [], 0
        for _ in range(min(count, PLACES_NAMED)):
            start = text.index(old, start)
            places.append(str(_line_number(text, start)))
            start += 1
        more = ", .." if count > PLACES_NAMED else ""
        return (
            f"old stands at {count} places of {shown(path)} (lines {', '.join(places)}{more}); "
            "give more of the text around the one that you mean"
        )
    if old.replace("\r\n", "\n").replace("\n", "\r\n") in text:
        return f"old does not stand in {shown(path)}: there, lines end with carriage return and newline"
    there, wanted = text.split("\n"), old.split("\n")
    # The first line of `old` may begin in the middle of a line of the file.
    first = next((place for place, line in enumerate(there) if line.endswith(wanted[0])), None)
    if first is None or not wanted[0].strip():
        return f"old does not stand in {shown(path)}; read it again and copy the text exactly"
    same = 0
    while same + 1 < len(wanted) and there[first + same + 1 : first + same + 2] == [wanted[same + 1]]:
        same += 1
    return (
        f"old does not stand in {shown(path)}: its first {same + 1} line(s) fit at line {first + 1}, "
        f"line {first + same + 2} differs from what follows in old"
    )


def _line_number(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _encoded(content: str, file_bytes: int) -> bytes:
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise ToolFault("the content holds half a character (a lone surrogate)") from None
    if len(data) > file_bytes:
        raise ToolFault(f"the file would have {len(data)} bytes, at most {file_bytes}")
    return data


def _replace(at: int, name: str, path: str, data: bytes) -> None:
    """Put `data` in the file's place: a reader, and a kill, see the old or the new."""
    with faults_of(path):
        mode = _mode_of(at, name, path)
        # Short, whatever the name: a long one has no room for more.
        part = f".{secrets.token_hex(8)}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o666, dir_fd=at)
        try:
            with os.fdopen(fd, "wb") as file:
                if mode is not None:
                    os.fchmod(fd, mode)
                file.write(data)
            os.rename(part, name, src_dir_fd=at, dst_dir_fd=at)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=at)
            raise


def _mode_of(at: int, name: str, path: str) -> int | None:
    """Permissions of the file that is replaced; None where there is none yet."""
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise ToolFault(f"{shown(path)} is {kind}")
    return stat.S_IMODE(found.st_mode)


def list_folder(root: str, path: str, limit: int, limit_bytes: int) -> str:
    """The names in a folder, sorted: folders end with `/`, links with `@`, files tell their bytes."""
    with folder_of(root, path) as (at, name), faults_of(path):
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        try:
            lines, count, is_whole = _entries(fd, limit, limit_bytes - MARK_BYTES)
        finally:
            os.close(fd)
    if not lines:
        return "[the folder is empty]"
    if len(lines) < count:
        more = "" if is_whole else "more than "
        lines.append(f"[{len(lines)} of {more}{count} entries shown]")
    return "\n".join(lines)


def _entries(fd: int, limit: int, room: int) -> tuple[list[str], int, bool]:
    """Lines that fit, how many entries there are, and whether all were looked at."""
    found: list[tuple[str, str]] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(found) == LOOK_AT_ENTRIES:
                return _fitting(found, limit, room), len(found), False
            found.append((entry.name, _kind(entry)))
    return _fitting(found, limit, room), len(found), True


def _fitting(found: list[tuple[str, str]], limit: int, room: int) -> list[str]:
    lines = []
    for name, kind in sorted(found)[:limit]:
        line = f"{name}{kind}".encode("utf-8", "replace").decode()
        room -= len(line.encode()) + 1
        if room < 0:
            break
        lines.append(line)
    return lines


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        if entry.is_symlink():
            return "@"
        if entry.is_dir():
            return "/"
        return f"  {entry.stat(follow_symlinks=False).st_size}" if entry.is_file() else "|"
    except OSError:
        return "?"
