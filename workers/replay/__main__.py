"""`python -m workers.replay FILE`: what `dsh-tasks replay` runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys

from dsh_tasks import format as log_format
from dsh_tasks.errors import DshTasksError
from workers.replay.comparing import Difference
from workers.replay.playing import play
from workers.replay.recorded import Recorded


def main(argv: list[str] | None = None) -> int:
    """Replay a log file. Exit codes: 0 no difference, 1 a difference, else as in the README."""
    parser = argparse.ArgumentParser(prog="dsh-tasks replay")
    parser.add_argument("file")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    try:
        recorded = Recorded.of(log_format.read(given.file))
        found = asyncio.run(replayed(recorded))
    except DshTasksError as error:
        told = {"code": error.code, "message": error.message, "facts": error.facts}
        print(
            json.dumps({"error": {**told, "exit_code": error.exit_code}})
            if given.json
            else f"dsh-tasks: {error.message}",
            file=sys.stdout if given.json else sys.stderr,
        )
        return error.exit_code
    as_json = json.dumps(value(recorded, found), ensure_ascii=False, indent=2)
    print(as_json if given.json else words(recorded, found))
    return 0 if found is None else 1


async def replayed(recorded: Recorded) -> Difference | None:
    """All attempts, one after another; the first difference."""
    for place in range(len(recorded.attempts)):
        if found := await play(recorded, place):
            return found
    return None


def words(recorded: Recorded, found: Difference | None) -> str:
    """What came of it, for a person."""
    rows, attempts = len(recorded.rows), len(recorded.attempts)
    what = f"{rows} rows of {attempts} attempt{'s' if attempts > 1 else ''}"
    if found is None:
        end = "" if recorded.rows[-1]["type"] == "turn/end" else "; the log has no end yet"
        return f"no difference in {what}{end}"
    return "\n".join([f"row {found.seq}, {found.type}: {found.what}", *found.diff])


def value(recorded: Recorded, found: Difference | None) -> dict[str, object]:
    """The same as JSON."""
    told = None
    if found is not None:
        told = {"seq": found.seq, "type": found.type, "what": found.what, "diff": found.diff}
    return {"rows": len(recorded.rows), "attempts": len(recorded.attempts), "difference": told}


if __name__ == "__main__":
    sys.exit(main())
