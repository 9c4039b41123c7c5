"""A function that has much to say."""

from __future__ import annotations

import sys
import time


def print_lines(number: int, work: int) -> float:
    """The seconds it took; ``work`` is how much it does between two lines."""
    begun = time.perf_counter()
    total = 0
    for line in range(number):
        for step in range(work):
            total += step * step
        print("line number", line, "of a task that has much to say")
    sys.stdout.flush()
    return time.perf_counter() - begun
