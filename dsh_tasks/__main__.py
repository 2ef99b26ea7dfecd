"""`python -m dsh_tasks`: the command line."""

from __future__ import annotations

from dsh_tasks.cli import main

main()
