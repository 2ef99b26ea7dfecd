"""The key of a tool call; a module of its own, so that a helper process need not load the engine for it."""

from __future__ import annotations

import contextvars

call_key: contextvars.ContextVar[str] = contextvars.ContextVar("call_key", default="")
"""Inside a tool: `<task>/<call>`, equal whenever the same call runs, to deduplicate outside effects by."""
