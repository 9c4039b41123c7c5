from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from airflow_horsies.embedded import java
from airflow_horsies.embedded.errors import EmbeddedError

PROPERTIES = """\
Property settings:
    java.home = {home}
    java.io.tmpdir = /tmp
    java.specification.version = {version}
    java.version = {version}.0.1
openjdk version "{version}.0.1"
"""


def make_java(home: Path, version: str) -> Path:
    """A program that answers as a Java of this version would."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{PROPERTIES.format(home=home, version=version)}END\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(("specification", "major"), [("21", 21), ("17", 17), ("1.8", 8), ("25", 25), ("11", 11)])
def test_major_version(specification: str, major: int) -> None:
    assert java.major_version(specification) == major


def test_parse_properties_reads_home_and_version() -> None:
    found = java.parse_properties(PROPERTIES.format(home="/opt/a java", version="21"), "PATH")
    assert found == java.Java(Path("/opt/a java"), 21, "PATH")


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_parse_properties_refuses_a_java_that_is_too_old(version: str) -> None:
    assert java.parse_properties(PROPERTIES.format(home="/opt/java", version=version), "PATH") is None


def test_parse_properties_refuses_an_answer_it_does_not_understand() -> None:
    assert java.parse_properties("Usage: java [options]", "PATH") is None


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "21")
    on_path = make_java(tmp_path / "path", "25")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{on_path.parent}:/usr/bin:/bin"}
    assert java.find_java(tmp_path / "wrapper", environ).source == "JAVA_HOME"


def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    make_java(tmp_path / "home", "11")
    on_path = make_java(tmp_path / "path", "17")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{on_path.parent}:/usr/bin:/bin"}
    found = java.find_java(tmp_path / "wrapper", environ)
    assert (found.source, found.home) == ("PATH", tmp_path / "path")
    assert not (tmp_path / "wrapper").exists()


def test_no_java_at_all_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_wheel_java", lambda: None)
    with pytest.raises(EmbeddedError, match=r"Java 17 or newer.*pip install"):
        java.find_java(tmp_path, {"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path / "missing")})


def test_the_wrapper_drops_one_flag_and_keeps_every_other_argument_as_it_is(tmp_path: Path) -> None:
    echo = tmp_path / "a folder's name" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    echo.chmod(0o755)
    home = java.wrap(echo, tmp_path / "wrapped home")
    arguments = ["-cp", "a b:c", java.VECTOR_FLAG, "--add-modules=java.sql", "$HOME", "", "it's"]
    printed = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    arguments.remove(java.VECTOR_FLAG)
    assert printed == "".join(f"<{argument}>" for argument in arguments)
