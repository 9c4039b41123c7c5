"""The peers, each in an environment of its own: a process that does its work when it is told to, and says how long."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.integration.releases import CACHE, environment_with

ROOT = Path(__file__).parents[2]
PROCRASTINATE = "procrastinate==3.10.0"
PGQUEUER = "pgqueuer==1.6.0"
CELERY = "celery==5.7.0"
SPARK_PROVIDER = "apache-airflow-providers-apache-spark==6.3.4"


def peer_python(peer: str, *more: str) -> Path:
    """The interpreter of an environment that has the peer."""
    return environment_with(peer.replace("==", "-"), peer, *more)


def spark_provider_python() -> Path:
    """… that has Airflow and its provider for Spark, at our versions of everything else."""
    home = CACHE / SPARK_PROVIDER.replace("==", "-")
    if not (home / "installed").exists():
        install = [".ci/install", sys.executable, str(home), SPARK_PROVIDER, "apache-airflow", "pyspark"]
        subprocess.run(install, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (home / "installed").touch()
    return home / "bin" / "python"


class Peer:
    """A script beside this file, run by the interpreter of an environment that has the peer.

    The script reads a number of tasks a line, some more numbers, and answers with seconds; what it needs to know
    is in its environment.
    """

    def __init__(self, script: str, python: Path, environ: Mapping[str, str]) -> None:
        self.name = script
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, Path(__file__).with_name(script)],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=60)
        self._log.close()

    def seconds(self, count: int = 1, *more: int) -> float:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            print(count, *more, file=self._process.stdin, flush=True)
        said = self._process.stdout.readline()
        if not said:
            code = self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"{self.name} ended with code {code}:\n{self._log.read()[-4000:]}")
        return float(said)
