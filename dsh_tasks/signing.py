"""Signing: secrets and signatures as Standard Webhooks 1.0.0 has them, and what an endpoint's URL may be.

No message of an error here holds what was given: a URL's path may be a secret too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

SECRET_PREFIX = "whsec_"  # noqa: S105 - how a secret begins, not one
KEY_LEAST_BYTES, KEY_MOST_BYTES = 24, 64
URL_MOST = 2_048


def keys_of(secret: str) -> tuple[bytes, ...]:
    """The keys of one secret, or of several separated by spaces while one takes the other's place.

    A secret is `whsec_` and 24 to 64 bytes in base64. Raises ValueError.
    """
    keys = tuple(_key_of(one) for one in secret.split())
    if not keys:
        msg = "it is empty"
        raise ValueError(msg)
    return keys


def _key_of(secret: str) -> bytes:
    if not secret.startswith(SECRET_PREFIX):
        msg = f"a secret begins with {SECRET_PREFIX}"
        raise ValueError(msg)
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        msg = f"what follows {SECRET_PREFIX} is no base64"
        raise ValueError(msg) from None
    if not KEY_LEAST_BYTES <= len(key) <= KEY_MOST_BYTES:
        msg = f"a secret has {KEY_LEAST_BYTES} to {KEY_MOST_BYTES} bytes, this one has {len(key)}"
        raise ValueError(msg)
    return key


def signature(keys: Sequence[bytes], *, message_id: str, at_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one `v1,<base64>` for each key, separated by spaces."""
    signed = f"{message_id}.{at_s}.".encode() + body
    digests = [hmac.new(key, signed, hashlib.sha256).digest() for key in keys]
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


def check_endpoint(url: str) -> None:
    """Raises ValueError where `url` is none to which an event can be sent."""
    if not url.isascii() or not url.isprintable() or " " in url or len(url) > URL_MOST:
        msg = f"an ASCII URL of at most {URL_MOST} characters without spaces"
        raise ValueError(msg)
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        msg = "it is no http:// or https:// URL"
        raise ValueError(msg)
    if parts.username is not None or parts.password is not None or parts.fragment:
        msg = "it may hold no user, password or fragment; the signature says who sends"
        raise ValueError(msg)


def is_open(url: str) -> bool:
    """Whether what is sent there can be read on its way: no TLS, and not to this machine."""
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1")


def shown(url: str) -> str:
    """Scheme, host and port: all of an endpoint that may be told."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
