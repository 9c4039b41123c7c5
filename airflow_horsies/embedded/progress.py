"""Prints steps and their durations, on a terminal or to a log file."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

TERMINAL_TICK_SECONDS = 0.5
LOG_TICK_SECONDS = 10.0


class Step:
    """A running step; ``update`` sets the text that is shown after the seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = time.monotonic()
        self._text = ""

    def update(self, text: str) -> None:
        self._text = text

    def line(self) -> str:
        return f"{self._title} … {time.monotonic() - self._began:.0f} s" + (f": {self._text}" if self._text else "")

    def last_line(self, outcome: str) -> str:
        return f"{self._title}: {outcome}{time.monotonic() - self._began:.1f} s"


class Progress:
    """Prints each step with its seconds; on a terminal the line is updated in place."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._in_place = stream.isatty()

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """Show a step while it runs."""
        step = Step(title)
        ended = threading.Event()
        self._show(f"{title} …")
        ticker = threading.Thread(target=self._tick, args=(step, ended), daemon=True)
        ticker.start()
        outcome = "failed after "
        try:
            yield step
            outcome = ""
        finally:
            ended.set()
            ticker.join()
            self._show(step.last_line(outcome), last=True)

    def _tick(self, step: Step, ended: threading.Event) -> None:
        while not ended.wait(TERMINAL_TICK_SECONDS if self._in_place else LOG_TICK_SECONDS):
            self._show(step.line())

    def _show(self, line: str, *, last: bool = False) -> None:
        if not self._in_place:
            print(f"  {line}", file=self._stream, flush=True)
            return
        # Return to the first column, and erase the rest of a longer line.
        print(f"\r  {line}\x1b[K", file=self._stream, end="\n" if last else "", flush=True)
