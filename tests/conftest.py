"""Airflow reads its settings when it is first imported, so they are set before any test is."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

from hypothesis import settings

_airflow_home = tempfile.mkdtemp(prefix="airflow-horsies-tests-")
atexit.register(shutil.rmtree, _airflow_home, ignore_errors=True)
for name in [name for name in os.environ if name.startswith(("AIRFLOW_", "HORSIES_", "PG"))]:
    del os.environ[name]
os.environ.update(
    AIRFLOW_HOME=_airflow_home,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__API__BASE_URL="http://airflow.test:8080",
)
# Like Ctrl-C: the fixtures stop their servers.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# How long an example takes says more about the machine than about the code.
settings.register_profile("airflow_horsies", deadline=None)
settings.load_profile("airflow_horsies")
