"""'make chaos': seeded faults and changes on the real stack under load, and the rules that must hold all the same."""

from __future__ import annotations

# The task instances outside of Airflow, and the DAG of those within.
LIGHT_DAG_ID, DAG_ID = "light", "chaos"
# What the tasks of the DAG in dags/ ask for; each key begins with the run.
AIRFLOW_WORK = {
    "deferred": [("deferred", 3, "")],
    "blocking": [("blocking", 2, "TRY_AGAIN")],
    "batch": [(f"batch-{position}", 1, "") for position in range(3)],
    "chunked": [(f"chunked-{position}", 0.5, "TRY_AGAIN" if position == 3 else "") for position in range(6)],
}
