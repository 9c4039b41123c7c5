"""How tasks are described to people, in one line each."""

from __future__ import annotations

from airflow_horsies.models import Progress


def describe_progress(progress: Progress) -> str:
    """``40 % (4 of 10), stage 3 of 7``"""
    told = f"{progress.done:,} done"
    if progress.total and progress.fraction is not None:
        # Rounded down: nothing is done to 100 % before its end.
        told = f"{int(progress.fraction * 100)} % ({progress.done:,} of {progress.total:,})"
    return f"{told}, {progress.stage}" if progress.stage else told
