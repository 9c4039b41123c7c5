"""Imported by the scheduler, so that the processes of LocalExecutor, its forks, need not import it each time anew."""

from __future__ import annotations

import airflow_horsies.operators
import airflow_horsies.triggers  # noqa: F401
