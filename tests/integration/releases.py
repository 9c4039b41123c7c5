"""The horsies releases the wire is proven on, each in a virtual environment of its own, made once and kept."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from functools import cache
from pathlib import Path

IN_PLACE = "0.4.7"
MOVED = "0.5.4"
RELEASES = tuple(os.environ.get("TEST_RELEASES", f"{IN_PLACE} {MOVED}").split())
CACHE = Path(__file__).parents[2] / ".cache" / "releases"


def keeps_history(release: str) -> bool:
    """Whether finished tasks are moved, as from 0.5 on."""
    return tuple(map(int, release.split("."))) >= (0, 5)


def can_be_controlled(release: str) -> bool:
    """Whether SQL can cancel and pause workflows, as from 0.4.6 on."""
    return tuple(map(int, release.split("."))) >= (0, 4, 6)


@cache
def release_python(release: str) -> Path:
    """The interpreter of an environment that has this release."""
    if importlib.metadata.version("horsies") == release:
        return Path(sys.executable)
    return environment_with(f"horsies-{release}", f"horsies=={release}", "psycopg[binary]")


def environment_with(name: str, *requirements: str) -> Path:
    """The interpreter of an environment that has what is asked for."""
    home = CACHE / f"{name}-py{sys.version_info.major}.{sys.version_info.minor}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "installed").exists():
            shutil.rmtree(home, ignore_errors=True)
            venv.create(home, with_pip=True)
            python = home / "bin" / "python"
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, *requirements], check=True)
            (home / "installed").touch()
    return home / "bin" / "python"
