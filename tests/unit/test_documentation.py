"""Every error has a place in the documentation, and its address leads there."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from airflow_horsies import outcomes
from airflow_horsies.core.documentation import DOCUMENTED_CODES, ERRORS_PAGE, explain_error
from airflow_horsies.exceptions import HorsiesError, TaskExpired, TaskFailed
from airflow_horsies.operators import HorsiesOperator
from tests.docs.blocks import DOCS
from tests.unit.test_exceptions import all_errors

URL = "https://docs.example.com/horsies/"
ANCHORS = {
    heading.lower()
    for heading in re.findall(
        r"^### (\w+)$", (DOCS / ERRORS_PAGE.replace(".html", ".md")).read_text(), flags=re.MULTILINE
    )
}


@pytest.mark.parametrize("code", sorted(DOCUMENTED_CODES))
def test_code_has_a_place(code: str) -> None:
    address = explain_error(URL, code)
    assert address == f"https://docs.example.com/horsies/reference/errors.html#{code.lower()}"
    assert code.lower() in ANCHORS


@pytest.mark.parametrize("kind", [*all_errors(), outcomes.TaskFailedForGood, outcomes.TaskTimedOut])
def test_exception_has_a_place(kind: type[HorsiesError]) -> None:
    assert kind.__name__.lower() in ANCHORS


def test_exception_leads_to_its_place() -> None:
    error = TaskExpired("too late", task_id="t")
    assert explain_error(URL, error) == "https://docs.example.com/horsies/reference/errors.html#taskexpired"


def test_every_code_in_the_reference_is_known() -> None:
    exceptions = {kind.__name__.lower() for kind in all_errors()}
    assert {code.lower() for code in DOCUMENTED_CODES} == {
        anchor for anchor in ANCHORS if "_" in anchor and anchor not in exceptions
    }


@pytest.mark.parametrize("docs_url", ["", "javascript:alert(1)", "docs.example.com"])
def test_without_an_address_there_is_no_link(docs_url: str) -> None:
    assert explain_error(docs_url, "BAD_INPUT") is None


@pytest.mark.parametrize("error", ["NO_DATA_YET", "", None])
def test_a_code_of_a_task_has_no_place(error: str | None) -> None:
    assert explain_error(URL, error) is None


@pytest.mark.parametrize(("code", "anchor"), [("BAD_INPUT", "bad_input"), ("NO_DATA_YET", "taskfailed")])
def test_log_of_a_failed_task_names_the_page(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: str, anchor: str
) -> None:
    monkeypatch.setenv("AIRFLOW__HORSIES__DOCS_URL", URL)
    operator = HorsiesOperator(task_id="load", task_name="load")

    def fail(*_: Any) -> None:
        raise TaskFailed("it failed", task_id="t", error_code=code)

    monkeypatch.setattr(operator, "_finish", fail)
    with pytest.raises(TaskFailed):
        operator._end(cast(Any, None), [], {})
    assert f"See {URL}reference/errors.html#{anchor}" in capfd.readouterr().out
