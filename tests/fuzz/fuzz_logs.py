"""Fuzz the reader of logs: whatever bytes come in, a Session that can be written and read, or a refusal.

python tests/fuzz/fuzz_logs.py --seconds 720 --faults FOLDER
python tests/fuzz/fuzz_logs.py FILE...
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz import engine

engine.instrumented()

from tests.fuzz import checks

PARSERS_COMPARED = 0.25
"""Share of inputs of which each line is read by the standard parser too."""


def target(data: bytes, dice: Random) -> None:
    """One input."""
    checks.check_log(data)
    if dice.random() < PARSERS_COMPARED:
        checks.check_lines(data)


if __name__ == "__main__":
    sys.exit(engine.main(target, sys.argv[1:]))
