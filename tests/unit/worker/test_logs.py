from __future__ import annotations

import errno
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("horsies")

from airflow_horsies.models import LogLine
from airflow_horsies.worker.logs import CHUNK_BYTES, MAX_LINE_BYTES, MAX_LINE_CHARS, AttemptLog, Capture
from airflow_horsies.worker.masking import mask

SECRET = "s3cret-word"
QUIETED = ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger")


def taken(log: AttemptLog, attempt: int = 1, first_number: int = 1) -> list[LogLine]:
    """The lines, one by one."""
    return [
        LogLine(
            attempt=attempt, number=chunk.first_number + index, logged_at=chunk.logged_at, level=chunk.level, text=text
        )
        for chunk in log.take(first_number)
        for index, text in enumerate(chunk.lines)
    ]


def texts(log: AttemptLog) -> list[str]:
    return [line.text for line in taken(log)]


def records(log: AttemptLog) -> list[tuple[str, str]]:
    return [(line.level, line.text) for line in taken(log)]


# -- AttemptLog --------------------------------------------------------------------------------------------------------


def test_lines_have_a_bound_in_bytes_too() -> None:
    log = AttemptLog(1_000_000, max_bytes=50_000)
    for number in range(1_000):
        log.add("INFO", [f"{number:04d} " + "ü" * 500])
    log.close()
    *kept, bound, last = texts(log)
    assert 10 < len(kept) < 50
    assert sum(len(line.encode()) for line in kept) < 50_000
    assert kept[0].startswith("0000") and kept[-1].startswith(f"{len(kept) - 1:04d}")
    assert bound == "The log of this attempt has reached its limit of 50,000 bytes. Later lines are not stored."
    assert last.startswith(f"{1_000 - len(kept):,} more lines were not stored")


def test_a_line_longer_than_is_kept_counts_as_much_as_is_kept_of_it() -> None:
    log = AttemptLog(10, max_bytes=20_000)
    log.add("INFO", ["x" * 1_000_000, "y"])
    assert [text[0] for text in texts(log)] == ["x", "y"]


def test_lines_are_taken_in_order_once_and_numbered_on() -> None:
    log = AttemptLog(10)
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    log.add("INFO", ["a", "b"], at)
    log.add("ERROR", ["c"])
    first = taken(log, 2, 5)
    assert [(line.attempt, line.number, line.level, line.text) for line in first] == [
        (2, 5, "INFO", "a"),
        (2, 6, "INFO", "b"),
        (2, 7, "ERROR", "c"),
    ]
    assert (first[0].logged_at, first[1].logged_at) == (at, at)
    assert first[2].logged_at.tzinfo is not None
    assert taken(log, 2, 8) == []
    log.add("INFO", ["d"])
    assert [(line.number, line.text) for line in taken(log, 2, 8)] == [(8, "d")]


def test_no_more_lines_are_kept_than_the_limit_and_it_says_so_once() -> None:
    log = AttemptLog(3)
    log.add("INFO", ["a", "b", "c"])
    assert log.is_full
    log.add("INFO", ["d"])
    log.add("INFO", ["e", "f"])
    log.close()
    assert records(log) == [
        ("INFO", "a"),
        ("INFO", "b"),
        ("INFO", "c"),
        ("WARNING", "The log of this attempt has reached its limit of 3 lines. Later lines are not stored."),
        ("WARNING", "3 more lines were not stored. See the log of the worker process."),
    ]


def test_a_chunk_that_passes_the_limit_is_kept_in_part_and_the_notice_comes_behind_it() -> None:
    log = AttemptLog(3)
    log.add("INFO", ["a", "b"])
    log.add("INFO", ["c", "d", "e"])
    *kept, notice = texts(log)
    assert kept == ["a", "b", "c"]
    assert "not stored" in notice
    assert log.dropped == 2


def test_lines_that_were_taken_still_count() -> None:
    log = AttemptLog(2)
    log.add("INFO", ["a", "b"])
    assert texts(log) == ["a", "b"]
    log.add("INFO", ["c"])
    assert [text for text in texts(log) if len(text) == 1] == []


def test_nothing_is_said_where_the_limit_is_just_reached() -> None:
    log = AttemptLog(2)
    log.add("INFO", ["a", "b"])
    log.close()
    assert texts(log) == ["a", "b"]


def test_a_limit_of_nothing_keeps_nothing_but_the_notices() -> None:
    log = AttemptLog(0)
    log.add("INFO", ["a"])
    log.close()
    assert [level for level, _ in records(log)] == ["WARNING", "WARNING"]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("nul \x00 byte", "nul \N{REPLACEMENT CHARACTER} byte"),
        ("half \ud83d pair", r"half \ud83d pair"),
        ("whole 🐎 pair", "whole 🐎 pair"),
        ("of Windows\r", "of Windows"),
        ("", ""),
        ("  indented\t", "  indented\t"),
        ("x" * MAX_LINE_CHARS, "x" * MAX_LINE_CHARS),
        ("x" * 5_000, "x" * MAX_LINE_CHARS + "… (5,000 characters)"),
        ("\ud83d" + "x" * 5_000, r"\ud83d" + "x" * (MAX_LINE_CHARS - 6) + "… (5,006 characters)"),
    ],
    ids=["NUL", "surrogate", "emoji", "carriage-return", "empty", "blanks", "longest", "too-long", "long-surrogate"],
)
def test_lines_become_what_postgres_can_hold(written: str, kept: str) -> None:
    log = AttemptLog(10)
    log.add("INFO", [written])
    assert texts(log) == [kept]


def test_secrets_are_masked_also_where_a_long_line_is_cut() -> None:
    mask(SECRET)
    log = AttemptLog(10)
    log.add("INFO", [f"key={SECRET}", "x" * (MAX_LINE_CHARS - 5) + SECRET])
    first, second = texts(log)
    assert first == "key=***"
    assert SECRET[:5] not in second


def test_a_secret_learned_after_a_line_was_written_is_still_masked_in_it() -> None:
    log = AttemptLog(10)
    log.add("INFO", [SECRET])
    mask(SECRET)
    assert texts(log) == ["***"]


def raised() -> ValueError:
    try:
        raise ValueError("no such day")
    except ValueError as error:
        return error


def test_an_exception_is_kept_with_its_traceback() -> None:
    log = AttemptLog(50)
    log.add_exception(raised())
    lines = taken(log)
    assert {line.level for line in lines} == {"ERROR"}
    assert lines[0].text == "Traceback (most recent call last):"
    assert lines[-1].text == "ValueError: no such day"
    assert any("in raised" in line.text for line in lines)
    assert not any("\n" in line.text for line in lines)


def test_of_an_attempt_that_wrote_all_its_lines_what_we_say_is_kept_and_the_traceback_is_not() -> None:
    log = AttemptLog(2)
    log.add("INFO", ["a", "b", "c"])
    log.add_exception(raised())
    log.add_note("ERROR", "UNHANDLED_EXCEPTION: ValueError: no such day")
    log.close()
    dropped = log.dropped
    assert dropped > 3
    assert records(log) == [
        ("INFO", "a"),
        ("INFO", "b"),
        ("WARNING", "The log of this attempt has reached its limit of 2 lines. Later lines are not stored."),
        ("ERROR", "UNHANDLED_EXCEPTION: ValueError: no such day"),
        ("WARNING", f"{dropped} more lines were not stored. See the log of the worker process."),
    ]


def test_the_place_where_code_was_stopped_is_kept_without_the_exception() -> None:
    log = AttemptLog(50)
    log.add_place(raised())
    lines = taken(log)
    assert {line.level for line in lines} == {"WARNING"}
    assert any("in raised" in line.text for line in lines)
    assert not any("Traceback" in line.text or line.text.startswith("ValueError") for line in lines)


def test_lines_of_several_threads_are_all_kept() -> None:
    log = AttemptLog(1_500)
    threads = [threading.Thread(target=lambda: [log.add("INFO", ["x"]) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    number = 0
    while any(thread.is_alive() for thread in threads):
        number += len(taken(log))
    for thread in threads:
        thread.join()
    number += len(taken(log))
    assert (log.count, log.dropped, number) == (1_500, 500, 1_501)


# -- Capture -----------------------------------------------------------------------------------------------------------


class Child:
    """A process with streams of its own, and the attempt it runs."""

    def __init__(self) -> None:
        self.log: AttemptLog | None = None
        self.out, self.err = io.BytesIO(), io.BytesIO()
        self.capture = Capture(lambda: self.log)

    def begin(self, max_lines: int = 100) -> AttemptLog:
        self.capture.flush()
        self.log = AttemptLog(max_lines)
        return self.log

    def end(self) -> None:
        self.capture.end_lines()
        self.log = None


@contextmanager
def capturing() -> Iterator[Child]:
    """A child whose streams and loggers are those of this process, which has its own back afterwards.

    No fixture, as pytest sets the streams anew between a fixture and its test.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in QUIETED}
    streams = sys.stdout, sys.stderr
    child = Child()
    # Kept, as a stream that is forgotten closes what it writes to.
    own = sys.stdout, sys.stderr = io.TextIOWrapper(child.out), io.TextIOWrapper(child.err)
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        child.capture.install()
        yield child
        child.capture.flush()
    finally:
        sys.stdout, sys.stderr = streams
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
        for stream in own:
            stream.detach()


def test_what_a_task_prints_goes_where_it_went_and_to_its_attempt() -> None:
    with capturing() as child:
        log = child.begin()
        print("to stdout")
        print("to stderr", file=sys.stderr)
        child.end()
        assert sorted(records(log)) == [("INFO", "to stdout"), ("WARNING", "to stderr")]
        assert (child.out.getvalue(), child.err.getvalue()) == (b"to stdout\n", b"to stderr\n")


TOKEN = "hcb_" + "Zm9vYmFy-_mF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmE"


@pytest.mark.parametrize("in_attempt", [True, False])
@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("pieces", [1, 2, 3, 20])
def test_a_token_of_a_callback_is_in_no_log_however_it_is_cut(in_attempt: bool, end: str, pieces: int) -> None:
    with capturing() as child:
        log = child.begin() if in_attempt else None
        text = f"at https://a/callbacks/{TOKEN}/fail, oh"
        for begin in range(0, len(text), len(text) // pieces):
            print(text[begin : begin + len(text) // pieces], end="", flush=True)
        print(f" and {TOKEN}", end=end, flush=True)
        child.end()
        assert child.out.getvalue().decode() == f"at https://a/callbacks/hcb_***/fail, oh and hcb_***{end}"
        if log is not None:
            assert texts(log) == ["at https://a/callbacks/hcb_***/fail, oh and hcb_***"]


def test_a_token_on_the_seam_of_two_chunks_is_masked() -> None:
    for begin in range(CHUNK_BYTES - 60, CHUNK_BYTES + 5, 7):
        with capturing() as child:
            child.begin(0)
            print("." * begin + TOKEN + "," * CHUNK_BYTES)
            child.end()
            assert child.out.getvalue() == b"." * begin + b"hcb_***" + b"," * CHUNK_BYTES + b"\n"


def test_text_that_only_begins_like_a_token_is_printed_whole() -> None:
    with capturing() as child:
        child.begin()
        for text in ("each", " hc", "hcb", "hcb_", "hcb_short", " h"):
            print(text, end="", flush=True)
        child.end()
        assert child.out.getvalue() == b"each hchcbhcb_hcb_short h"


def test_what_is_printed_while_no_attempt_runs_is_no_attempts() -> None:
    with capturing() as child:
        print("before")
        log = child.begin()
        print("within")
        child.end()
        print("after")
        child.capture.flush()
        assert texts(log) == ["within"]
        assert child.out.getvalue() == b"before\nwithin\nafter\n"


def test_a_line_is_whole_however_many_pieces_it_came_in() -> None:
    with capturing() as child:
        log = child.begin()
        for piece in (b"first ha", b"lf, sec", b"ond half\nnext: \xe2\x82", b"\xac\n"):
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
        child.end()
        assert texts(log) == ["first half, second half", "next: €"]


def test_a_last_line_without_an_end_is_kept() -> None:
    with capturing() as child:
        log = child.begin()
        print("whole")
        print("without an end", end="")
        child.end()
        assert texts(log) == ["whole", "without an end"]
        assert child.out.getvalue() == b"whole\nwithout an end"


def test_the_rest_of_a_line_waits_until_the_attempt_ends() -> None:
    with capturing() as child:
        log = child.begin()
        print("50 %", end="")
        child.capture.flush()
        assert texts(log) == []
        print(" done")
        child.end()
        assert texts(log) == ["50 % done"]


def test_two_attempts_after_one_another_do_not_mix() -> None:
    with capturing() as child:
        first = child.begin()
        print("first")
        print("half a line of the first", end="")
        child.end()
        second = child.begin()
        print("second")
        child.end()
        assert (texts(first), texts(second)) == (["first", "half a line of the first"], ["second"])


def test_half_a_line_of_an_attempt_that_never_ended_is_not_the_next_ones() -> None:
    with capturing() as child:
        first = child.begin()
        print("half", end="")
        second = child.begin()
        print("second")
        child.end()
        assert (texts(first), texts(second)) == ([], ["second"])


def test_bytes_that_are_no_text_are_kept_readable() -> None:
    with capturing() as child:
        log = child.begin()
        sys.stdout.buffer.write(b"\xff\xfe ok\n")
        print("half \ud83d pair")
        child.end()
        assert texts(log) == [r"\xff\xfe ok", r"half \ud83d pair"]


def test_empty_lines_are_lines() -> None:
    with capturing() as child:
        log = child.begin()
        print("a\n\nb")
        child.end()
        assert texts(log) == ["a", "", "b"]


def test_a_line_without_end_does_not_pile_up() -> None:
    with capturing() as child:
        log = child.begin()
        for _ in range(100):
            sys.stdout.write("x" * 10_000)
            sys.stdout.flush()
        lines = taken(log)
        assert lines
        assert all(len(line.text) < MAX_LINE_CHARS + 100 for line in lines)
        assert sum(len(passage._rest) for _, passage in child.capture._streams) <= MAX_LINE_CHARS
        child.end()
        assert len(child.out.getvalue()) == 1_000_000


def test_a_line_too_long_to_wait_for_is_not_cut_within_a_character_and_the_next_one_is_whole() -> None:
    written = ("€" * 50_000).encode()
    with capturing() as child:
        log = child.begin()
        for start in range(0, len(written), 10_000):
            sys.stdout.buffer.write(written[start : start + 10_000])
            sys.stdout.flush()
        print("\nnext")
        child.end()
        long, *others = texts(log)
        assert long.startswith("€" * MAX_LINE_CHARS + "… (")
        assert others == ["next"]


@pytest.mark.parametrize("seam", [MAX_LINE_CHARS, MAX_LINE_BYTES])
def test_a_secret_on_the_seam_of_a_long_line_is_masked(seam: int) -> None:
    mask("s3cret-word-very-long")
    with capturing() as child:
        log = child.begin()
        sys.stdout.write("y" * (seam - 9) + "s3cret-wor")
        sys.stdout.flush()
        print("d-very-long")
        child.end()
        kept = "".join(texts(log))
        assert "s3cret" not in kept
        assert "very-long" not in kept


def test_lines_past_the_limit_are_counted_and_still_go_where_they_went() -> None:
    with capturing() as child:
        log = child.begin(max_lines=2)
        for number in range(10):
            print(number)
            sys.stdout.flush()
        child.end()
        log.close()
        assert texts(log)[:2] == ["0", "1"]
        assert log.dropped == 8
        assert child.out.getvalue().count(b"\n") == 10


@pytest.mark.parametrize("end", ["\n", ""], ids=["whole", "without its end"])
def test_a_line_in_two_pieces_about_the_limit_is_counted_once(end: str) -> None:
    with capturing() as child:
        log = child.begin(max_lines=2)
        for piece in ("0\n1\n2", " and 3\n4", f" and 5{end}"):
            print(piece, end="", flush=True)
        child.end()
        assert texts(log)[:2] == ["0", "1"]
        assert log.dropped == 2


def test_a_stream_still_has_its_file_descriptor(tmp_path: Path) -> None:
    with capturing(), (tmp_path / "out").open("w") as file:
        sys.stdout = file
        other = Capture(lambda: None)
        other.install()
        assert sys.stdout.fileno() == file.fileno()
        assert sys.stdout.writable()
        other.flush()


class FullDisk(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_for_the_own_log_of_the_worker_fails_no_task_and_loses_no_line() -> None:
    with capturing() as child:
        full = sys.stdout = io.TextIOWrapper(FullDisk())
        logging.getLogger().handlers[:] = [logging.NullHandler()]
        Capture(lambda: child.log).install()
        log = child.begin()
        print("as long as a buffer", "x" * CHUNK_BYTES)
        logging.getLogger("my.tasks").info("logged")
        print("short")
        sys.stdout.flush()
        assert [text[:19] for text in texts(log)] == ["as long as a buffer", "my.tasks: logged", "short"]
        assert not full.closed


def test_log_records_have_their_level_their_logger_and_their_time() -> None:
    with capturing() as child:
        log = child.begin()
        before = datetime.now(UTC)
        for level in ("debug", "info", "warning", "error", "critical"):
            getattr(logging.getLogger("my.tasks"), level)("as %s", level)
        after = datetime.now(UTC)
        child.end()
        lines = taken(log)
        assert [(line.level, line.text) for line in lines] == [
            ("INFO", "my.tasks: as info"),
            ("WARNING", "my.tasks: as warning"),
            ("ERROR", "my.tasks: as error"),
            ("CRITICAL", "my.tasks: as critical"),
        ]
        assert all(before <= line.logged_at <= after for line in lines)


def test_a_logged_exception_is_kept_line_by_line_at_its_level() -> None:
    with capturing() as child:
        log = child.begin()
        try:
            raise ValueError("no such day")
        except ValueError:
            logging.getLogger("my.tasks").exception("two\nlines")
        child.end()
        lines = records(log)
        assert {level for level, _ in lines} == {"ERROR"}
        assert [text for _, text in lines][:3] == ["my.tasks: two", "lines", "Traceback (most recent call last):"]
        assert lines[-1] == ("ERROR", "ValueError: no such day")


def test_a_record_is_kept_once_and_printed_once() -> None:
    with capturing() as child:
        log = child.begin()
        logging.getLogger("my.tasks").warning("careful")
        child.end()
        assert records(log) == [("WARNING", "my.tasks: careful")]
        assert child.err.getvalue().count(b"careful") == 1


def test_records_of_horsies_are_left_to_its_own_handlers() -> None:
    with capturing() as child:
        log = child.begin()
        logging.getLogger("horsies").warning("of horsies")
        logging.getLogger("horsies.worker").error("of horsies")
        child.end()
        assert texts(log) == []
        assert child.err.getvalue() == b""


def test_records_of_a_package_that_is_only_named_after_horsies_are_kept() -> None:
    with capturing() as child:
        log = child.begin()
        logging.getLogger("horsies_etl.load").warning("mine")
        child.end()
        assert texts(log) == ["horsies_etl.load: mine"]


def test_records_of_py4j_and_of_sparks_query_contexts_are_noise() -> None:
    with capturing() as child:
        log = child.begin()
        logging.getLogger("py4j").info("Callback Server Starting")
        logging.getLogger("py4j.clientserver").info("Closing down clientserver connection")
        logging.getLogger("SQLQueryContextLogger").error("{}")
        logging.getLogger("py4j").warning("kept")
        child.end()
        assert texts(log) == ["py4j: kept"]


def test_a_record_that_cannot_be_formatted_does_not_fail_the_task() -> None:
    with capturing() as child:
        log = child.begin(max_lines=1_000)
        logging.getLogger("my.tasks").warning("%d days", "no")
        logging.getLogger("my.tasks").warning("still here")
        child.end()
        assert "my.tasks: still here" in texts(log)


def test_a_verbose_root_logger_stays_verbose_and_its_handlers_stay() -> None:
    with capturing() as child:
        root = logging.getLogger()
        root.handlers[:] = [logging.NullHandler()]
        root.setLevel(logging.DEBUG)
        Capture(lambda: child.log).install()
        log = child.begin()
        logging.getLogger("my.tasks").debug("detail")
        child.end()
        assert texts(log) == ["my.tasks: detail"]
        assert [type(handler).__name__ for handler in root.handlers] == ["NullHandler", "_LineHandler"]
