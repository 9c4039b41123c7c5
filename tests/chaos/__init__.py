"""'make chaos': seeded faults on the real stack under load, and the rules that must hold all the same."""

from __future__ import annotations

# The task instances outside of Airflow, and the DAG of those within.
LIGHT_DAG_ID, DAG_ID = "light", "chaos"
BATCH_SIZE = 3
