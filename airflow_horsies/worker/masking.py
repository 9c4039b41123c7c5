"""Removes secrets from the log lines and error messages that leave a child."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote, unquote_plus

from airflow_horsies.core.masking import mask_tokens

MASK = "***"
# Shorter secrets would mask ordinary words.
MIN_CHARS = 5
SECRET_NAME = re.compile(
    r"password|passwd|secret|token|credential|(?:api|access|account|private|storage)[._-]?key", re.IGNORECASE
)
# Settings with such a name can also be switches and numbers.
HARMLESS = re.compile(r"true|false|none|null|yes|no|on|off|[\d.]+(?:ms|s|m|h|d)?", re.IGNORECASE)
# These additional names occur in connection strings and are too short to look for elsewhere.
SECRET_PAIR_NAME = re.compile(rf"{SECRET_NAME.pattern}|signature|\b(?:pwd|pass|sig)$", re.IGNORECASE)
PAIR = re.compile(r"""([\w.-]+(?: [\w.-]+)*)\s*=\s*("[^"]*"|'[^']*'|[^;&\s]+)""")
URL = re.compile(r"[a-z][\w+.-]*://", re.IGNORECASE)
URL_PASSWORD = re.compile(r"://[^\s/:@]*:([^\s/@]+)@")
PORT = re.compile(r"\d+(?:/|$)")

_secrets: set[str] = set()


def mask(value: str) -> str:
    """
    Mask a secret in the log lines and error messages of this worker. Returns it unchanged.

    .. code-block:: python

        key = mask(read_key_from_vault())

    :param value: the secret. A secret of fewer than five characters is not masked.
    """
    if isinstance(value, str):
        # Text is masked line by line.
        _secrets.update(line for line in value.splitlines() if len(line) >= MIN_CHARS)
        _pattern.cache_clear()
    return value


def mask_known(conf: Mapping[str, str], urls: Iterable[str]) -> None:
    """Mask the secrets in the environment, in Spark's settings and in database URLs."""
    for name, value in (*os.environ.items(), *conf.items()):
        if SECRET_NAME.search(name) and not HARMLESS.fullmatch(value):
            mask(value)
    for text in (*os.environ.values(), *conf.values(), *urls):
        for secret in secrets_in(text):
            if not HARMLESS.fullmatch(secret):
                mask(secret)
                mask(unquote(secret))


def secrets_in(text: str) -> Iterator[str]:
    """Passwords in URLs, and values with the name of a secret in a connection string or in JSON."""
    if text.lstrip().startswith(("{", "[")):
        try:
            yield from _secrets_in_json(json.loads(text))
        except ValueError:
            pass
        else:
            return
    yield from URL_PASSWORD.findall(text)
    if URL.match(text):
        yield from _password_of(text)
    for name, quoted in PAIR.findall(text):
        value = quoted[1:-1] if quoted[0] in "'\"" else quoted
        if SECRET_PAIR_NAME.search(name):
            # A comma can separate pairs or be part of a password.
            yield from {value, value.partition(",")[0]}
        elif (decoded := unquote_plus(value)).startswith("{"):
            yield from secrets_in(decoded)


def _secrets_in_json(value: Any, name: str = "") -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _secrets_in_json(item, str(key))
        case list():
            for item in value:
                yield from _secrets_in_json(item, name)
        case str():
            if SECRET_PAIR_NAME.search(name):
                yield value
            yield from secrets_in(value)


def _password_of(url: str) -> Iterator[str]:
    """A password may contain characters that other parts of a URL may not."""
    user_and_password, at, _ = url.partition("://")[2].rpartition("@")
    password = user_and_password.partition(":")[2]
    if at and password and not PORT.match(password):
        yield password


def presentable(text: str) -> str:
    """The text without secrets and without characters that Postgres cannot store."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "backslashreplace").decode("utf-8")
    return masked(text)


def masked(text: str) -> str:
    pattern = _pattern()
    return mask_tokens(pattern.sub(MASK, text) if pattern else text)


@cache
def _pattern() -> re.Pattern[str] | None:
    # Longest first, so that a secret that starts with another secret is masked completely.
    known = sorted(_secrets, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, known))) if known else None
