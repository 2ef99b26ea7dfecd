"""Clock: local time that goes on while the machine sleeps, where there is one."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def elapsed_s() -> float:
    """Seconds since some fixed point. CLOCK_BOOTTIME counts suspend; a lease does, too."""
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    return time.monotonic()
