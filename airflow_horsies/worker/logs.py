"""The lines of an attempt: what the task prints and logs, and what Spark says meanwhile.

``sys.stdout`` and ``sys.stderr`` of a child are replaced once and for good. Python's own buffers stay in front, so that
a line costs what it cost before; what passes is handed on in chunks to where it went before, and to the attempt.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import BinaryIO, TextIO

from airflow_horsies.core.log import LogChunk
from airflow_horsies.worker.masking import presentable

MAX_LINE_CHARS = 4_000
MAX_LINE_BYTES = 100_000
CHUNK_BYTES = 32_768
# Its header, its key in the table and in the index, its time and level.
ROW_BYTES = 100

Sink = Callable[[], "AttemptLog | None"]


class AttemptLog:
    """Collects the lines of one attempt, up to a limit; taking them is the reporter's part."""

    def __init__(self, max_lines: int, max_bytes: int = sys.maxsize) -> None:
        self._max_lines = max_lines
        self._bytes_left = self._max_bytes = max_bytes
        self._chunks: deque[tuple[datetime, str, list[str]]] = deque()
        self._lock = threading.Lock()
        self.count = 0
        self.dropped = 0

    @property
    def is_full(self) -> bool:
        return self.count >= self._max_lines or self._bytes_left <= 0

    def add(self, level: str, lines: list[str], at: datetime | None = None) -> None:
        with self._lock:
            kept = self._fitting(lines[: max(self._max_lines - self.count, 0)])
            self.count += len(kept)
            if kept:
                self._chunks.append((at or datetime.now(UTC), level, kept))
            self._drop(len(lines) - len(kept))

    def say(self, level: str, text: str) -> None:
        """A line of our own, which is kept even where the task has written all it may."""
        self._chunks.append((datetime.now(UTC), level, [text]))

    def drop(self, lines: int) -> None:
        """Lines that came after the last one that is kept."""
        with self._lock:
            self._drop(lines)

    def add_exception(self, error: BaseException) -> None:
        try:
            told = "".join(traceback.format_exception(error))
        except Exception:
            told = "".join(traceback.format_tb(error.__traceback__))
        self.add("ERROR", told.splitlines())

    def add_place(self, error: BaseException) -> None:
        """Where the code was when it was stopped."""
        self.add("WARNING", "".join(traceback.format_tb(error.__traceback__)).splitlines())

    def close(self) -> None:
        """Say how much was left out."""
        if self.dropped:
            self.say("WARNING", f"{self.dropped:,} further lines were not kept; the worker's own log has them")

    def take(self, first_number: int) -> list[LogChunk]:
        """The lines that came since, numbered and masked."""
        chunks: list[LogChunk] = []
        while self._chunks:
            at, level, lines = self._chunks.popleft()
            chunks.append(LogChunk(first_number, at, level, _clean(lines)))
            first_number += len(lines)
        return chunks

    def _fitting(self, lines: list[str]) -> list[str]:
        """As many of the lines as there is room for; from the first one on for which there is none, nothing is kept."""
        for number, line in enumerate(lines):
            size = _size(line)
            if size > self._bytes_left:
                self._bytes_left = 0
                return lines[:number]
            self._bytes_left -= size
        return lines

    def _drop(self, lines: int) -> None:
        if lines > 0 and not self.dropped:
            bound = f"{self._max_lines:,} lines" if self._bytes_left else f"{self._max_bytes:,} bytes"
            self.say("WARNING", f"This attempt has written its {bound}; more are not kept here")
        self.dropped += max(lines, 0)


class _Passage(io.RawIOBase):
    """Hands chunks on to the stream that was there before, and whole lines to the attempt that runs now."""

    def __init__(self, before: BinaryIO, level: str, sink: Sink) -> None:
        self._before = before
        self._level = level
        self._sink = sink
        self._log: AttemptLog | None = None
        self._rest = b""
        self._skips_rest = False

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        chunk = bytes(data)
        # Where its disk is full, the worker's own log has a gap; no task fails for that.
        with suppress(OSError):
            self._before.write(chunk)
            self._before.flush()
        log = self._sink()
        if log is not self._log:
            self._log, self._rest, self._skips_rest = log, b"", False
        if log is not None:
            self._keep(log, chunk)
        return len(chunk)

    def fileno(self) -> int:
        return self._before.fileno()

    def end_line(self) -> None:
        """A last line without an end is a line, too."""
        rest, self._rest = self._rest, b""
        if self._log is not None and rest:
            self._log.add(self._level, [rest.decode("utf-8", "backslashreplace")])

    def _keep(self, log: AttemptLog, chunk: bytes) -> None:
        if log.is_full:
            log.drop(chunk.count(b"\n"))
            # A line that began before was counted with its end; one without an end is counted by end_line.
            self._rest = b"" if chunk.endswith(b"\n") else chunk[-1:]
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._skips_rest:
            self._skips_rest = not lines
            lines, self._rest = lines[1:], self._rest if lines else b""
        if lines:
            log.add(self._level, [line.decode("utf-8", "backslashreplace") for line in lines])
        if len(self._rest) > MAX_LINE_BYTES:
            # Nobody reads on; what follows up to the end of the line goes with it.
            log.add(self._level, [self._rest.decode("utf-8", "ignore")])
            self._rest, self._skips_rest = b"", True


class _LineHandler(logging.Handler):
    """Gives log records to the attempt that runs now."""

    def __init__(self, sink: Sink, flush_streams: Callable[[], None]) -> None:
        super().__init__()
        self._sink = sink
        self._flush_streams = flush_streams
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        self.addFilter(_is_not_of_horsies)

    def emit(self, record: logging.LogRecord) -> None:
        log = self._sink()
        if log is None:
            return
        try:
            lines = self.format(record).splitlines()
        except Exception:
            self.handleError(record)
            return
        # What was printed before comes before.
        self._flush_streams()
        log.add(record.levelname, lines, datetime.fromtimestamp(record.created, UTC))


class Capture:
    """The streams and the log handler of a child."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._streams: list[tuple[TextIO, _Passage]] = []

    def install(self) -> None:
        root = logging.getLogger()
        if not root.handlers:
            own = logging.StreamHandler(sys.stderr)
            own.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            own.addFilter(_is_not_of_horsies)
            root.addHandler(own)
        root.addHandler(_LineHandler(self._sink, self.flush))
        if root.level > logging.INFO or root.level == logging.NOTSET:
            root.setLevel(logging.INFO)
        logging.getLogger("py4j").setLevel(logging.WARNING)
        # Repeats every error of Spark as one line of JSON, trace and all.
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        sys.stdout = self._replace(sys.stdout, "INFO")
        sys.stderr = self._replace(sys.stderr, "WARNING")

    def flush(self) -> None:
        for stream, _ in self._streams:
            stream.flush()

    def end_lines(self) -> None:
        for stream, passage in self._streams:
            stream.flush()
            passage.end_line()

    def _replace(self, stream: TextIO, level: str) -> TextIO:
        stream.flush()
        passage = _Passage(stream.buffer, level, self._sink)
        buffered = io.BufferedWriter(_open_file())
        replaced = io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", newline="\n")
        buffered.__init__(passage, CHUNK_BYTES)  # type: ignore[misc]
        self._streams.append((replaced, passage))
        return replaced


@cache
def _open_file() -> io.FileIO:
    """What a text stream is made on: with each piece of a line it asks whether the lowest stream is closed.

    Where it was made on a plain file that costs next to nothing, elsewhere half as much as the printing itself.
    """
    return io.FileIO(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def _is_not_of_horsies(record: logging.LogRecord) -> bool:
    """horsies has handlers of its own."""
    return record.name != "horsies" and not record.name.startswith("horsies.")


def _size(line: str) -> int:
    """What it takes once it is kept, with what its row takes beside it."""
    kept = line[:MAX_LINE_CHARS]
    return ROW_BYTES + (len(kept) if kept.isascii() else len(kept.encode("utf-8", "backslashreplace")))


def _clean(lines: list[str]) -> list[str]:
    """As many lines, fit to be kept; all at once, as one by one would take many times as long."""
    cleaned = presentable("\n".join(line.replace("\n", " ") for line in lines)).split("\n")
    return [_shortened(line.rstrip("\r")) for line in cleaned]


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… ({len(line):,} characters)"
