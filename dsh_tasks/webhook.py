"""Webhook: an ending as a signed CloudEvent, and the pauses between tries. Pure: no clock, no I/O.

CloudEvents 1.0.2, structured JSON mode; signed as Standard Webhooks 1.0.0. An event holds what a notice
holds, never output or prompt.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self
from urllib.parse import quote

from dsh_tasks import signing
from dsh_tasks.notice import LABEL_MAX_BYTES, Notice
from dsh_tasks.settings import Settings
from dsh_tasks.task import cut_text

EVENT_TYPE = "dev.dsh-tasks.task.ended"
CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Ending:
    """One ending that is to be sent: the notice, whose it is, and which try this is (from 1)."""

    notice: Notice
    owner: str
    tries: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where endings are sent, and what signs them. Neither is shown."""

    url: str = field(repr=False)
    keys: tuple[bytes, ...] = field(repr=False)
    source: str
    """CloudEvents' `source`: which installation, by its prefix."""

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The endpoint that the settings name; None where they name none."""
        if settings.webhook_url is None or settings.webhook_secret is None:
            return None
        keys = signing.keys_of(settings.webhook_secret.get_secret_value())
        return cls(settings.webhook_url, keys, f"/dsh-tasks/{quote(settings.prefix.strip(':'), safe='')}")

    @property
    def digest(self) -> str:
        """What tells this endpoint from another one, URL and keys, without telling either."""
        return hashlib.sha256(b"\0".join((self.url.encode(), *self.keys))).hexdigest()[:16]

    def message(self, ending: Ending, *, at_s: int) -> tuple[dict[str, str], bytes]:
        """Headers and body of one try at `at_s` (epoch seconds)."""
        body = event(ending, self.source)
        headers = {
            "content-type": CONTENT_TYPE,
            "user-agent": "dsh-tasks",
            "webhook-id": ending.notice.id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": signing.signature(
                self.keys, message_id=ending.notice.id, at_s=at_s, body=body
            ),
        }
        return headers, body


def event(ending: Ending, source: str) -> bytes:
    """The CloudEvent: the same bytes at each try, at most a few KiB."""
    notice = ending.notice
    ended_at = datetime.fromtimestamp(notice.at_ms / 1000, UTC)
    envelope = {
        "specversion": "1.0",
        "id": notice.id,
        "source": source,
        "type": EVENT_TYPE,
        "subject": notice.task_id,
        "time": ended_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": {
            "task_id": notice.task_id,
            "label": " ".join(cut_text(notice.label, LABEL_MAX_BYTES).split()),
            "status": notice.status.value,
            "cause": notice.cause.value if notice.cause is not None else None,
            "owner": ending.owner,
            "at_ms": notice.at_ms,
        },
    }
    return json.dumps(envelope, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
