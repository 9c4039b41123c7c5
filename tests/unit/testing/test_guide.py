"""The files of the guide, as a user has them: pytest runs them in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import airflow_horsies
from tests.docs.blocks import all_blocks

PACKAGE = Path(airflow_horsies.__file__).parent


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    for block in all_blocks("python tested"):
        path = tmp_path / block.text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
