from __future__ import annotations

import io
import re

import pytest

from airflow_horsies.embedded.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_step_prints_its_seconds_in_a_log() -> None:
    stream = io.StringIO()
    with Progress(stream).step("Postgres"):
        pass
    assert re.fullmatch(r"  Postgres …\n  Postgres: 0\.\d s\n", stream.getvalue())


def test_a_step_stays_on_one_line_on_a_terminal() -> None:
    stream = Terminal()
    with Progress(stream).step("Postgres"):
        pass
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith(" s\x1b[K\n")


def test_a_step_that_fails_says_so() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="no"), Progress(stream).step("Postgres"):
        raise ValueError("no")
    assert "failed after" in stream.getvalue()
