"""Growth: by how many characters an event of a model's stream lets the answer grow."""

from __future__ import annotations

from pydantic_ai.messages import (
    ModelResponsePart,
    ModelResponsePartDelta,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
)


def growth(event: ModelResponseStreamEvent) -> int:
    """Text, reasoning and arguments alike; 1 for an event that carries none of them."""
    match event:
        case PartStartEvent(part=part):
            return _size(part)
        case PartDeltaEvent(delta=delta):
            return _size(delta)
    return 1


def _size(piece: ModelResponsePart | ModelResponsePartDelta) -> int:
    for name in ("content_delta", "content", "args_delta", "args"):
        value = getattr(piece, name, None)
        if isinstance(value, str) and value:
            return len(value)
    return 1
