"""Secrets are taken out of whatever leaves the child: log lines, error messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from urllib.parse import unquote

MASK = "***"
# Shorter ones would take ordinary words out of every line.
LEAST_CHARS = 5
SECRET_NAME = re.compile(
    r"password|passwd|secret|token|credential|(?:api|access|account|private|storage)[._-]?key", re.IGNORECASE
)
# Under such names one also finds switches and numbers.
HARMLESS = re.compile(r"true|false|none|null|yes|no|on|off|[\d.]+(?:ms|s|m|h|d)?", re.IGNORECASE)
URL_PARAMETER = re.compile(r"[?&;](?:[\w.-]*(?:password|token|secret)[\w.-]*)=([^&;\s]+)", re.IGNORECASE)

_secrets: set[str] = set()


def mask(value: str) -> str:
    """
    Keep a secret out of the log lines and error messages of this worker; returns it unchanged.

    .. code-block:: python

        key = mask(read_key_from_vault())

    :param value: the secret; one of fewer than five characters is not masked.
    """
    if isinstance(value, str):
        # Lines are looked at one by one.
        _secrets.update(line for line in value.splitlines() if len(line) >= LEAST_CHARS)
        _pattern.cache_clear()
    return value


def mask_known(conf: Mapping[str, str], urls: Iterable[str]) -> None:
    """Secrets of the environment, of Spark's settings and of database URLs."""
    for name, value in (*os.environ.items(), *conf.items()):
        if SECRET_NAME.search(name) and not HARMLESS.fullmatch(value):
            mask(value)
    for url in urls:
        password = _password_of(url)
        for secret in (password or "", *URL_PARAMETER.findall(url)):
            mask(secret)
            mask(unquote(secret))


def _password_of(url: str) -> str | None:
    """A password may hold what other URLs may not."""
    user_and_password, at, _ = url.partition("://")[2].rpartition("@")
    return user_and_password.partition(":")[2] if at else None


def presentable(text: str) -> str:
    """Without secrets, and without what Postgres cannot hold."""
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "backslashreplace").decode("utf-8")
    return masked(text)


def masked(text: str) -> str:
    pattern = _pattern()
    return pattern.sub(MASK, text) if pattern else text


@cache
def _pattern() -> re.Pattern[str] | None:
    # Longest first: a secret that begins with another one goes as a whole.
    known = sorted(_secrets, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, known))) if known else None
