"""Pauses between retries."""

from __future__ import annotations

import random


class Backoff:
    """Growing pauses with jitter, so that many clients do not retry at the same time."""

    def __init__(self, first_seconds: float, most_seconds: float) -> None:
        self._first = min(first_seconds, most_seconds)
        self._most = most_seconds
        self._next = self._first

    def next_pause(self) -> float:
        pause = self._next
        self._next = min(pause * 2, self._most)
        return jittered(pause)

    def reset(self) -> None:
        self._next = self._first


def jittered(seconds: float) -> float:
    """A random time from half of the given one to all of it."""
    return random.uniform(seconds / 2, seconds)  # noqa: S311
