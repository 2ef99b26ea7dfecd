"""Watchdog: when an attempt that lives has stalled. By progress, not by life. Pure."""

from __future__ import annotations

from dsh_tasks.settings import Settings
from workers.attempt import Attempt

TOOL = "tool"
SHOWN_FROM = 1 / 3
"""From this part of what is borne on, silence is shown as a stall."""


def borne_ms(doing: str, settings: Settings) -> int:
    """How long an attempt may be silent while it does this; 0 is for ever."""
    return settings.tool_silence_ms if doing.startswith(TOOL) else settings.step_silence_ms


def shown_ms(silent_s: float, borne: int) -> int:
    """The stall as lists show it; 0 while it is none."""
    silent_ms = round(silent_s * 1000)
    return silent_ms if borne and silent_ms >= borne * SHOWN_FROM else 0


def stall_of(attempt: Attempt, silent_s: float, settings: Settings) -> str:
    """What was silent and for how long, in words without content; '' while it is borne."""
    borne = borne_ms(attempt.doing, settings)
    if not borne or silent_s * 1000 < borne or attempt.stop_reason is not None:
        return ""
    knob = "tool_silence_ms" if attempt.doing.startswith(TOOL) else "step_silence_ms"
    return f"no progress for {silent_s:.0f} s in {attempt.doing} ({knob} is {borne})"
