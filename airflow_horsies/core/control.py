"""The tasks that every app of ``airflow_horsies.worker`` has besides those of its authors."""

from __future__ import annotations

# Names that begin with it are ours.
OWN_PREFIX = "airflow_horsies."
# Does nothing; the first node of a workflow that is started from outside. It takes the key of the definition.
BEGIN = f"{OWN_PREFIX}begin"
DEFINITION_KEY = "definition_key"
# Resumes the paused workflows of a tree. It takes the id of the workflow at its root.
RESUME_WORKFLOW = f"{OWN_PREFIX}resume_workflow"
WORKFLOW_ID = "workflow_id"
