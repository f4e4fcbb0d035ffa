"""Signatures of what we send to webhooks, as Standard Webhooks say.

webhook-id          the same for the same content, also when it is sent again
webhook-timestamp   seconds since 1970
webhook-signature   v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from millpond.errors import RequestError

_PREFIX = "whsec_"


def sign(secret: bytes, identity: str, stamp: str, body: bytes) -> str:
    """The header `webhook-signature`."""
    digest = hmac.new(secret, f"{identity}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def parse_secret(text: str, where: str) -> bytes:
    """The secret's bytes.

    text:    `whsec_` and base64
    where:   how a hint names the place where it is set
    Raises:  INVALID_REQUEST.
    """
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except ValueError:  # binascii.Error is one
        secret = b""
    if len(secret) < 16:
        raise RequestError(
            "INVALID_REQUEST",
            "A webhook needs a secret of at least 16 bytes, in base64, to sign what it sends.",
            hint=f"Set MILLPOND_WEBHOOK_SECRET, or `secret` in {where}: whsec_$(openssl rand -base64 24).",
        )
    return secret
