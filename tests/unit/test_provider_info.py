from __future__ import annotations

import json
from importlib.metadata import entry_points, version
from importlib.resources import files
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import jsonschema
import pytest
from airflow.utils.file import list_py_file_paths

import airflow_horsies
from airflow_horsies.client.extras import LIBPQ_EXTRAS, OWN_EXTRAS
from airflow_horsies.hook import HorsiesHook
from airflow_horsies.provider_info import CONNECTION_TYPE, get_provider_info


def test_provider_info_is_valid_to_airflow() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(get_provider_info(), schema)


def test_provider_info_is_what_airflow_discovers() -> None:
    (entry,) = [
        entry for entry in entry_points(group="apache_airflow_provider") if entry.dist.name == "airflow-horsies"
    ]
    assert entry.load()() == get_provider_info()
    assert get_provider_info()["package-name"] == "airflow-horsies"
    assert get_provider_info()["versions"] == [airflow_horsies.__version__] == [version("airflow-horsies")]


def paths_in(info: Any) -> list[str]:
    if isinstance(info, dict):
        return [path for value in info.values() for path in paths_in(value)]
    if isinstance(info, list):
        return [path for value in info for path in paths_in(value)]
    return [info] if isinstance(info, str) and info.startswith("airflow_horsies.") else []


@pytest.mark.parametrize("path", paths_in(get_provider_info()))
def test_every_path_it_names_can_be_imported(path: str) -> None:
    assert resolve_name(path)


def test_connection_type_is_that_of_the_hook() -> None:
    assert CONNECTION_TYPE["connection-type"] == HorsiesHook.conn_type
    assert CONNECTION_TYPE["hook-name"] == HorsiesHook.hook_name
    assert resolve_name(CONNECTION_TYPE["hook-class-name"]) is HorsiesHook


def test_form_offers_exactly_the_extras_that_are_ours() -> None:
    assert set(CONNECTION_TYPE["conn-fields"]) == OWN_EXTRAS
    assert not OWN_EXTRAS & LIBPQ_EXTRAS


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
@pytest.mark.parametrize("syntax", ["glob", "regexp"])
def test_airflow_loads_no_example_in_place_of_a_dag_with_the_same_id(
    syntax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DAG_IGNORE_FILE_SYNTAX", syntax)
    examples = files("airflow_horsies") / "example_dags"
    assert {Path(path).name for path in list_py_file_paths(str(examples))} <= {"__init__.py"}
