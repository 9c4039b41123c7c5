from __future__ import annotations

import pickle
import re

import pytest

from airflow_horsies import exceptions
from airflow_horsies.exceptions import HorsiesError, InvalidTask, TaskError


def all_errors(root: type[HorsiesError] = HorsiesError) -> list[type[HorsiesError]]:
    return [root, *(error for child in root.__subclasses__() for error in all_errors(child))]


def make(kind: type[HorsiesError]) -> HorsiesError:
    if issubclass(kind, InvalidTask):
        return kind("priority", "must be 1")
    if issubclass(kind, TaskError):
        return kind("it is gone", task_id="t", queue="q", error_code="E")
    return kind("it is gone")


@pytest.mark.parametrize("kind", all_errors())
def test_error_survives_pickling_with_all_it_says(kind: type[HorsiesError]) -> None:
    # Airflow carries exceptions between processes.
    error = make(kind)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


def test_docstring_draws_every_error_there_is() -> None:
    drawn = re.findall(r"^[│├└─ ]*([A-Z]\w+)", exceptions.__doc__ or "", flags=re.MULTILINE)
    drawn.remove("Two")
    defined = {kind.__name__ for kind in all_errors() if kind.__module__ == exceptions.__name__}
    assert sorted(set(drawn) - {"Every"}) == sorted(defined)


def test_invalid_task_is_a_value_error_that_names_the_field() -> None:
    assert isinstance(InvalidTask("queue", "must not be empty"), ValueError)
    assert str(InvalidTask("queue", "must not be empty")) == "queue: must not be empty."
