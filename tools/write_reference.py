"""Writes docs/reference.md from the code: settings, errors, exit codes, commands.

python tools/write_reference.py           writes it
python tools/write_reference.py --check   exits 1 where it is not what the code says
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import typer.main

from dsh_tasks import errors
from dsh_tasks.cli import app
from dsh_tasks.settings import Settings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "reference.md"

EXIT_CODES = {
    0: "done",
    1: "failed",
    2: "usage",
    3: "not found",
    4: "refused by a limit",
    5: "server unreachable",
    6: "refused input (seed, schema, key conflict, name clash)",
    7: "still running, also a wait that timed out",
    8: "killed",
    130: "interrupted",
}


def bounds(field: object) -> str:
    """What a setting may be."""
    words = []
    for rule in getattr(field, "metadata", ()):
        for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
            if getattr(rule, name, None) is not None:
                words.append(f"{sign} {getattr(rule, name)}")
    return ", ".join(words)


def settings() -> list[str]:
    """A row for each knob."""
    rows = ["| variable | default | bounds | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        rows.append(f"| `DSH_TASKS_{name.upper()}` | {default} | {bounds(field)} | {meaning} |")
    return rows


def error_rows() -> list[str]:
    """A row for each error."""
    rows = ["| code | Python | exit | meaning |", "| --- | --- | --- | --- |"]
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    for kind in sorted(kinds, key=lambda kind: (kind.exit_code, kind.code)):
        meaning = (kind.__doc__ or "").splitlines()[0]
        rows.append(f"| `{kind.code}` | `{kind.__name__}` | {kind.exit_code} | {meaning} |")
    return rows


def commands() -> list[str]:
    """Usage of each command, as `--help` has it, without a terminal's width."""
    group = typer.main.get_command(app)
    rows: list[str] = []
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        rows += [f"### dsh-tasks {name}", "", " ".join((command.help or "").split()), ""]
        for param in command.params:
            names = ", ".join(f"`{one}`" for one in (*param.opts, *param.secondary_opts))
            if param.param_type_name == "argument":
                names = f"`{(param.metavar or param.name or '').upper()}`"
            rows.append(f"* {names}: {' '.join((getattr(param, 'help', '') or '').split()) or 'see above'}")
        rows.append("")
    return rows


def text() -> str:
    """The page."""
    lines = [
        "# Reference",
        "",
        "Made from the code by `tools/write_reference.py`; do not edit by hand.",
        "",
        "## Settings",
        "",
        "From the environment. The settings file that `DSH_TASKS_CONFIG` names (TOML) holds providers and tools;",
        "`dsh-tasks.example.toml` shows every option.",
        "",
        *settings(),
        "",
        "## Exit codes",
        "",
        *(f"* {code}: {meaning}" for code, meaning in EXIT_CODES.items()),
        "",
        "## Errors",
        "",
        *error_rows(),
        "",
        "## Commands",
        "",
        'Each takes `--json`: one JSON document on stdout, errors as `{"error": {"code", "message", "facts"}}`.',
        "",
        *commands(),
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(TARGET.read_text("utf-8") != text())
    TARGET.write_text(text(), "utf-8")
