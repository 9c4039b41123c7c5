"""The log of an attempt: what the task prints and logs, and the output of Spark.

``sys.stdout`` and ``sys.stderr`` of a child are replaced once. Python's own buffers stay in front, so that a line costs
no more than before. Each chunk goes to the original stream, without the tokens of callbacks, and to the attempt.
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
from airflow_horsies.core.masking import mask_token_bytes
from airflow_horsies.worker.masking import presentable

MAX_LINE_CHARS = 4_000
MAX_LINE_BYTES = 100_000
CHUNK_BYTES = 32_768
# The row header, the key in table and index, the time and the level.
ROW_BYTES = 100

Sink = Callable[[], "AttemptLog | None"]


class AttemptLog:
    """Collects the lines of one attempt up to a limit; the reporter takes them.

    ``item`` is the number of the item of a chunk that runs now.
    """

    def __init__(self, max_lines: int, max_bytes: int = sys.maxsize) -> None:
        self._max_lines = max_lines
        self._bytes_left = self._max_bytes = max_bytes
        self._chunks: deque[tuple[datetime, str, list[str], int | None]] = deque()
        self._lock = threading.Lock()
        self.item: int | None = None
        self.count = 0
        self.dropped = 0
        # Whether there ever was a line, ours or the task's.
        self.has_lines = False

    @property
    def is_full(self) -> bool:
        return self.count >= self._max_lines or self._bytes_left <= 0

    def add(self, level: str, lines: list[str], at: datetime | None = None) -> None:
        with self._lock:
            kept = self._fitting(lines[: max(self._max_lines - self.count, 0)])
            self.count += len(kept)
            if kept:
                self._append(at or datetime.now(UTC), level, kept)
            self._drop(len(lines) - len(kept))

    def add_note(self, level: str, text: str) -> None:
        """Add a line of our own, also beyond the limit."""
        self._append(datetime.now(UTC), level, [text])

    def drop(self, lines: int) -> None:
        """Count lines beyond the limit."""
        with self._lock:
            self._drop(lines)

    def add_exception(self, error: BaseException) -> None:
        try:
            trace = "".join(traceback.format_exception(error))
        except Exception:
            trace = "".join(traceback.format_tb(error.__traceback__))
        self.add("ERROR", trace.splitlines())

    def add_place(self, error: BaseException) -> None:
        """Add the place where the code was stopped."""
        self.add("WARNING", "".join(traceback.format_tb(error.__traceback__)).splitlines())

    def close(self) -> None:
        """Report how many lines were dropped."""
        if self.dropped:
            self.add_note("WARNING", f"{self.dropped:,} more lines were not stored. See the log of the worker process.")

    def take(self, first_number: int) -> list[LogChunk]:
        """Remove and return the collected lines, numbered and masked."""
        chunks: list[LogChunk] = []
        while self._chunks:
            at, level, lines, item = self._chunks.popleft()
            chunks.append(LogChunk(first_number, at, level, _clean(lines), item))
            first_number += len(lines)
        return chunks

    @property
    def has_new_lines(self) -> bool:
        return bool(self._chunks)

    def _append(self, at: datetime, level: str, lines: list[str]) -> None:
        self.has_lines = True
        self._chunks.append((at, level, lines, self.item))

    def _fitting(self, lines: list[str]) -> list[str]:
        """The lines that fit. After the first line that does not fit, nothing is stored."""
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
            self.add_note(
                "WARNING", f"The log of this attempt has reached its limit of {bound}. Later lines are not stored."
            )
        self.dropped += max(lines, 0)


class _TeeStream(io.RawIOBase):
    """Writes chunks to the original stream, and whole lines to the log of the current attempt."""

    def __init__(self, original: BinaryIO, level: str, sink: Sink) -> None:
        self._original = original
        self._level = level
        self._sink = sink
        self._log: AttemptLog | None = None
        self._rest = b""
        self._skips_rest = False
        # The begin of a token of a callback, perhaps: written with what comes next.
        self._held = b""

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        chunk = bytes(data)
        shown, self._held = mask_token_bytes(self._held + chunk)
        self._write_original(shown)
        log = self._sink()
        if log is not self._log:
            self._log, self._rest, self._skips_rest = log, b"", False
        if log is not None:
            self._keep(log, chunk)
        return len(chunk)

    def fileno(self) -> int:
        return self._original.fileno()

    def _write_original(self, chunk: bytes) -> None:
        # If the disk is full, the worker's own log has a gap, and no task fails.
        with suppress(OSError):
            self._original.write(chunk)
            self._original.flush()

    def end_line(self) -> None:
        """Add a last line that has no line break."""
        held, self._held = self._held, b""
        if held:
            # Nothing follows, so that a token ends here.
            self._write_original(mask_token_bytes(held + b"\n")[0][:-1])
        rest, self._rest = self._rest, b""
        if self._log is not None and rest:
            self._log.add(self._level, [rest.decode("utf-8", "backslashreplace")])

    def _keep(self, log: AttemptLog, chunk: bytes) -> None:
        if log.is_full:
            log.drop(chunk.count(b"\n"))
            # A line that began earlier is counted with its end. A line without an end is counted by end_line.
            self._rest = b"" if chunk.endswith(b"\n") else chunk[-1:]
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._skips_rest:
            self._skips_rest = not lines
            lines, self._rest = lines[1:], self._rest if lines else b""
        if lines:
            log.add(self._level, [line.decode("utf-8", "backslashreplace") for line in lines])
        if len(self._rest) > MAX_LINE_BYTES:
            # The rest of a line this long is skipped.
            log.add(self._level, [self._rest.decode("utf-8", "ignore")])
            self._rest, self._skips_rest = b"", True


class _LineHandler(logging.Handler):
    """Adds log records to the log of the current attempt."""

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
        # Keeps printed lines and log records in order.
        self._flush_streams()
        log.add(record.levelname, lines, datetime.fromtimestamp(record.created, UTC))


class Capture:
    """The streams and the log handler of a child."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._streams: list[tuple[TextIO, _TeeStream]] = []

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
        # They repeat every Spark error with its stack trace as one line of JSON.
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        sys.stdout = self._replace(sys.stdout, "INFO")
        sys.stderr = self._replace(sys.stderr, "WARNING")

    def flush(self) -> None:
        for stream, _ in self._streams:
            stream.flush()

    def end_lines(self) -> None:
        for stream, tee in self._streams:
            stream.flush()
            tee.end_line()

    def _replace(self, stream: TextIO, level: str) -> TextIO:
        stream.flush()
        tee = _TeeStream(stream.buffer, level, self._sink)
        buffered = io.BufferedWriter(_open_file())
        replaced = io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", newline="\n")
        buffered.__init__(tee, CHUNK_BYTES)  # type: ignore[misc]
        self._streams.append((replaced, tee))
        return replaced


@cache
def _open_file() -> io.FileIO:
    """The file that a text stream is created on. On each write it checks whether its lowest stream is closed.

    The check is cheap on a plain file. On another kind of stream it costs half as much as the printing.
    """
    return io.FileIO(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def _is_not_of_horsies(record: logging.LogRecord) -> bool:
    """horsies has its own log handlers."""
    return record.name != "horsies" and not record.name.startswith("horsies.")


def _size(line: str) -> int:
    """The stored size of a line with the overhead of its row."""
    kept = line[:MAX_LINE_CHARS]
    return ROW_BYTES + (len(kept) if kept.isascii() else len(kept.encode("utf-8", "backslashreplace")))


def _clean(lines: list[str]) -> list[str]:
    """The same number of lines, fit to be stored. Masking them one by one would take many times as long."""
    cleaned = presentable("\n".join(line.replace("\n", " ") for line in lines)).split("\n")
    return [_shortened(line.rstrip("\r")) for line in cleaned]


def _shortened(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… ({len(line):,} characters)"
