"""Images: which of a history's images a model is sent; a text mark stands for every other one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import BinaryContent, ImageUrl

TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What every provider reads that reads images at all."""


@dataclass(frozen=True, slots=True)
class Images:
    """What a model takes of images."""

    most: int = 100
    """In one request; the last ones of a history are kept. 0: it takes none."""
    most_bytes: int = 5 * 1024 * 1024
    """Of one image, as base64: the least that a provider is known to allow (Anthropic)."""

    def sent(self, block: Mapping[str, Any]) -> BinaryContent | ImageUrl | None:
        """The image that a block carries or points at; None where it is not there or beyond the limits."""
        if not self.most or block["type"] != "image" or block.get("offloaded"):
            return None
        source = block["source"] if isinstance(block.get("source"), Mapping) else block
        data, url = source.get("data"), source.get("url")
        media_type = source.get("media_type") or source.get("mediaType") or source.get("mimeType")
        if isinstance(data, str) and isinstance(media_type, str):
            return self._carried(data, media_type)
        if not isinstance(url, str):
            return None
        if url.startswith("data:"):
            kind, _, carried = url.removeprefix("data:").partition(";base64,")
            return self._carried(carried, kind)
        return ImageUrl(url) if url.startswith("https://") else None

    def _carried(self, data: str, media_type: str) -> BinaryContent | None:
        if media_type not in TYPES or not 0 < len(data) <= self.most_bytes:
            return None
        try:
            return BinaryContent(base64.b64decode(data, validate=True), media_type=media_type)
        except (binascii.Error, ValueError):
            return None
