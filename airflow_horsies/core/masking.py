"""Masks secrets that can be recognised by their form: passwords in URLs, and values after the name of a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
# A token of a callback begins with it, so that it is recognised wherever it stands.
TOKEN_PREFIX = "hcb_"  # noqa: S105 - the same for all

# Every repetition is bounded, so no text takes long. A password may contain characters that a URL should encode.
_URL_PASSWORD = re.compile(r"(?P<kept>://[^\s/:@'\"<>]{0,256}:)(?P<secret>[^\s'\"<>]{1,1024})(?=@)")
_NAMED = re.compile(
    r"""(?P<kept>
        (?:
            (?:passw(?:or)?d|pwd|passphrase|secret|token|credentials?
            |(?:api|access|account|private|storage|shared|encryption|fernet)[._-]?key)(?![A-Za-z])[\w.-]{0,64}
            |(?<=[?&;])sig
        )
        \\?["']?\s{0,3}[=:]\s{0,3}
    )
    (?P<secret>
        "(?:[^"\\]|\\.){1,4096}" | '(?:[^'\\]|\\.){1,4096}' | \\"(?:[^"\\]){1,4096}\\" | [^\s&;,"'\\(){}\[\]<>]{1,4096}
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_AUTHORIZATION = re.compile(r"(?P<kept>\b(?:Bearer|Basic)\s{1,3})(?P<secret>[\w.~+/=-]{8,4096})", re.IGNORECASE)
_TOKEN = re.compile(rf"(?P<kept>{TOKEN_PREFIX})(?P<secret>[A-Za-z0-9_-]{{16,128}})")
_TOKEN_BYTES = re.compile(_TOKEN.pattern.encode())
# What may be the begin of a token at the end of a part of a text, and how long it can be.
_TOKEN_BEGIN = re.compile(rb"h(?:c(?:b(?:_[A-Za-z0-9_-]{0,128})?)?)?\Z")
_TOKEN_BYTES_LENGTH = len(TOKEN_PREFIX) + 128
# Switches and numbers also have these names.
_HARMLESS = re.compile(r"true|false|none|null|yes|no|on|off|[\d.]+(?:ms|s|m|h|d)?|\*+", re.IGNORECASE)


def mask_text(text: str) -> str:
    """
    The text with all secrets masked that can be recognised by their form.

    >>> mask_text("cannot connect to postgresql://etl:hunter2@db/sales")
    'cannot connect to postgresql://etl:***@db/sales'
    """
    text = mask_tokens(text)
    for pattern in (_URL_PASSWORD, _NAMED, _AUTHORIZATION):
        text = pattern.sub(_masked, text)
    return text


def mask_tokens(text: str) -> str:
    """
    The text with only the tokens of callbacks masked.

    >>> mask_tokens("POST /horsies/callbacks/hcb_Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmE")
    'POST /horsies/callbacks/hcb_***'
    """
    return _TOKEN.sub(rf"\g<kept>{MASK}", text) if TOKEN_PREFIX in text else text


def mask_token_bytes(chunk: bytes) -> tuple[bytes, bytes]:
    """
    A part of a longer text with the tokens of callbacks masked, and the rest of it that may be the begin of a token.

    >>> mask_token_bytes(b"POST /horsies/callbacks/hcb_Zm9vYmFyYmF6cXV4Zm9v - at hcb_Zm9v")
    (b'POST /horsies/callbacks/hcb_*** - at ', b'hcb_Zm9v')
    """
    begin = _TOKEN_BEGIN.search(chunk, max(len(chunk) - _TOKEN_BYTES_LENGTH, 0))
    rest = b"" if begin is None else chunk[begin.start() :]
    whole = chunk[: len(chunk) - len(rest)]
    if TOKEN_PREFIX.encode() in whole:
        whole = _TOKEN_BYTES.sub(rb"\g<kept>" + MASK.encode(), whole)
    return whole, rest


def mask_value(value: Any) -> Any:
    """The same for every text in a value, including keys."""
    match value:
        case str():
            return mask_text(value)
        case Mapping():
            return {mask_value(key): mask_value(item) for key, item in value.items()}
        case list() | tuple():
            return [mask_value(item) for item in value]
    return value


def _masked(found: re.Match[str]) -> str:
    secret = found["secret"]
    quote = secret[0] if secret[0] in "\"'" else ""
    if _HARMLESS.fullmatch(secret.strip("\"'\\")):
        return found[0]
    return f"{found['kept']}{quote}{MASK}{quote}"
