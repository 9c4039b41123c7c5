"""The page scripts are checked against the payloads: a field that is renamed is noticed. 'make lint' checks them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.payload_types import TYPES_FILE

ROOT = Path(__file__).parents[3]
STATIC = TYPES_FILE.parent
DENO = Path(sys.executable).parent / "deno"
IMPORT = re.compile(r'^(?:import|\} from) (?:.* from )?"(\..*?)"', re.MULTILINE)
MAX_LINES = 500


def check_scripts(folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "DENO_NO_UPDATE_CHECK": "1", "NO_COLOR": "1", "DENO_DIR": str(folder / "cache")}
    command = [DENO, "check", "--quiet", "static"]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


@pytest.mark.skipif(not DENO.exists(), reason="deno is installed with the extra 'dev' only")
def test_a_renamed_field_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(STATIC, tmp_path / "static")
    shutil.copy(ROOT / "deno.json", tmp_path)
    types = tmp_path / "static" / TYPES_FILE.name
    checked = check_scripts(tmp_path)
    assert checked.returncode == 0, checked.stderr
    types.write_text(types.read_text().replace("  p95_seconds: ", "  renamed: "))
    checked = check_scripts(tmp_path)
    assert checked.returncode != 0
    assert "Property 'p95_seconds' does not exist on type 'Bucket'" in checked.stderr


@pytest.mark.parametrize("script", sorted(STATIC.rglob("*.js")), ids=lambda path: str(path.relative_to(STATIC)))
def test_a_script_is_short_and_imports_what_is_there(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    for name in IMPORT.findall(text):
        assert (script.parent / name).is_file(), name
