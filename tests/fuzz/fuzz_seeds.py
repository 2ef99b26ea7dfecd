"""Fuzz seeds: a changed log, where it is read, gives windows that are logs of children; damage is refused.

python tests/fuzz/fuzz_seeds.py --seconds 720 --faults FOLDER
python tests/fuzz/fuzz_seeds.py FILE...
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz import engine

engine.instrumented()

from dsh_tasks import format as log_format
from dsh_tasks.errors import SessionRefused
from tests.fuzz import checks


def target(data: bytes, dice: Random) -> None:
    """One input: the log, every window of it, and a damaged seed."""
    try:
        log = log_format.parse(data)
    except SessionRefused:
        return
    checks.check_seeds(log, dice)


if __name__ == "__main__":
    sys.exit(engine.main(target, sys.argv[1:]))
