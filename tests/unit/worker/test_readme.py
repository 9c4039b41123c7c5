from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("horsies")

from airflow_horsies.worker import settings
from airflow_horsies.worker.errors import ERROR_CODES

README = (Path(__file__).parents[3] / "README.md").read_text()


def test_readme_lists_every_error_code_with_whether_a_retry_helps() -> None:
    listed = re.findall(r"^\| `([A-Z_]+)` \| (yes|no) \| (.+) \|$", README, re.MULTILINE)
    assert listed == [
        (code, "yes" if meaning.retry_helps else "no", meaning.meaning) for code, meaning in ERROR_CODES.items()
    ]


def test_readme_lists_every_setting_of_a_worker() -> None:
    listed = set(re.findall(r"^\| `(HORSIES_[A-Z_]+)` \|", README, re.MULTILINE))
    known = {value for value in vars(settings).values() if isinstance(value, str) and value.startswith("HORSIES_")}
    assert listed >= known
