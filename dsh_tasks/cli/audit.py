"""`audit`: does everything on the server fit together?"""

from __future__ import annotations

from dsh_tasks.cli.border import DONE, FAILED, AsJson, awaited, emit, progress, say
from dsh_tasks.cli.connection import connected
from dsh_tasks.cli.render import counted
from dsh_tasks.store.audit import AuditReport


def audit(as_json: AsJson = False) -> int:
    """Check that everything on the server fits together.

    Records, logs, notices, counters, references, seeds: each fault names the key, what
    is wrong and what it should be. It only reads, and may run at any time.
    Ends with 0 when all holds, 1 with faults.
    """

    async def look() -> AuditReport:
        async with connected(None) as client:
            return await client.audit()

    report = awaited(look())
    if as_json:
        emit(report.to_json())
    else:
        _print(report)
    return DONE if report.is_clean else FAILED


def _print(report: AuditReport) -> None:
    for fault in report.faults:
        say(fault.line)
    if report.fault_count > len(report.faults):
        say(f"and {report.fault_count - len(report.faults)} more")
    for key in report.unsettled:
        progress(f"{key}: changed faster than it could be counted; audit again when it is quieter")
    tasks = ", ".join(f"{count} {status}" for status, count in report.tasks.items())
    say(
        f"{counted(report.fault_count, 'fault')} in {counted(sum(report.keys.values()), 'key')}; "
        f"{counted(sum(report.tasks.values()), 'task')}{f': {tasks}' if tasks else ''}"
    )
