"""Steps that show how long they take, on a terminal and in a log file alike."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

TERMINAL_TICK_SECONDS = 0.5
LOG_TICK_SECONDS = 10.0


class Progress:
    """Prints each step with its seconds; on a terminal they count up in place."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._in_place = stream.isatty()

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step while it lasts."""
        began = time.monotonic()
        ended = threading.Event()
        self._show(f"  {title} …")
        ticker = threading.Thread(target=self._tick, args=(title, began, ended), daemon=True)
        ticker.start()
        outcome = "failed after "
        try:
            yield
            outcome = ""
        finally:
            ended.set()
            ticker.join()
            self._show(f"  {title}: {outcome}{time.monotonic() - began:.1f} s", last=True)

    def _tick(self, title: str, began: float, ended: threading.Event) -> None:
        while not ended.wait(TERMINAL_TICK_SECONDS if self._in_place else LOG_TICK_SECONDS):
            self._show(f"  {title} … {time.monotonic() - began:.0f} s")

    def _show(self, line: str, *, last: bool = False) -> None:
        if not self._in_place:
            print(line, file=self._stream, flush=True)
            return
        # Back to the first column, and erase what a longer line left.
        print(f"\r{line}\x1b[K", file=self._stream, end="\n" if last else "", flush=True)
