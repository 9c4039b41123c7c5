"""Each statement lives in a file of its own, and each file is used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

import pytest

from airflow_horsies.wire.schema import Generation
from tests.unit.driving import SQL_FOLDERS, sql_files

GENERATIONS = tuple(generation.value for generation in Generation)


def modules(package: str) -> Iterator[ast.Module]:
    folder: Traversable = files(package)
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            yield ast.parse(entry.read_text(encoding="utf-8"))


def names_in_code(package: str) -> set[str]:
    return {
        node.value
        for module in modules(package)
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def names_of_files(package: str) -> set[str]:
    folder = files(package).joinpath("sql")
    plain = {entry.name for entry in folder.iterdir() if entry.is_file()}
    of_generations = {entry.name for each in folder.iterdir() if each.is_dir() for entry in each.iterdir()}
    return {name.removesuffix(".sql") for name in plain | of_generations}


@pytest.mark.parametrize("package", SQL_FOLDERS)
def test_every_file_is_named_by_a_caller(package: str) -> None:
    assert names_of_files(package) - names_in_code(package) == set()


def called_names(package: str) -> set[str]:
    """The last argument of sql_text and of Wire._sql."""
    return {
        node.args[-1].value
        for module in modules(package)
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.args[-1], ast.Constant)
        and isinstance(node.args[-1].value, str)
        and (
            (isinstance(node.func, ast.Name) and node.func.id == "sql_text")
            or (isinstance(node.func, ast.Attribute) and node.func.attr == "_sql")
        )
    }


@pytest.mark.parametrize("package", SQL_FOLDERS)
def test_every_name_that_is_called_is_a_file(package: str) -> None:
    called = called_names(package)
    assert called
    assert called <= names_of_files(package)


@pytest.mark.parametrize(("text", "name"), [pytest.param(text, name, id=name) for text, name in sql_files().items()])
def test_file_holds_one_statement_with_named_parameters_and_listed_columns(text: str, name: str) -> None:
    code = re.sub(r"--[^\n]*", "", text)
    code = re.sub(r"'[^']*'", "''", code)
    assert ";" not in code
    assert re.sub(r"%\(\w+\)s", "", code).count("%") == 0
    assert not re.search(r"SELECT\s+\*\s+FROM\s+(horsies|airflow_horsies)", code)
