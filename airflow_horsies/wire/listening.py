"""What horsies announces through NOTIFY. A notification is a hint; the table is the truth."""

from __future__ import annotations

from typing import Final

TASK_DONE: Final = "task_done"
"""Fires once a task is COMPLETED, FAILED, CANCELLED or EXPIRED, with the task's id as payload."""
