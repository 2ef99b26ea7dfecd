"""Audit: does everything under the prefix fit together? Reads only, and names each key that does not."""

from dsh_tasks.store.audit.inspection import audit, census
from dsh_tasks.store.audit.report import AuditReport, Fault

__all__ = ["AuditReport", "Fault", "audit", "census"]
