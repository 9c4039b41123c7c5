"""A short run of 'make chaos': every kind of fault and change but those of Airflow itself, and no violation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.plan import KINDS

ROOT = Path(__file__).parents[2]
SEED = 7
FAULTS = 70


@pytest.mark.timeout(600)
def test_short_trials_violate_nothing(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    command = [sys.executable, "-W", "ignore", "-m", "tests.chaos", "--no-airflow", "--pace", "0.5"]
    command += ["--seed", str(SEED), "--faults", str(FAULTS), "--out", str(out)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    with (tmp_path / "said.txt").open("w+") as said:
        with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=said, stderr=subprocess.STDOUT) as trials:
            try:
                code = trials.wait()
            finally:
                # Asked to end, it cleans up.
                trials.terminate()
        said.seek(0)
        told = said.read()
    print(told)
    assert code == 0, told
    report = json.loads(out.read_text())
    assert (report["violations"], report["seed"]) == (0, SEED)
    assert report["faults"] + report["changes"] >= FAULTS
    tried = {name for name, count in (report["fault_kinds"] | report["change_kinds"]).items() if count}
    expected = {name for name, kind in KINDS.items() if kind.needs is None}
    assert tried >= expected, f"not tried: {expected - tried}"
