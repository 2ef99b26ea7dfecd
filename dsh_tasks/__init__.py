"""Durable, distributed background subagents."""
