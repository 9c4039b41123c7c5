"""What the demo does with the stack: a month of real flights, a failure that heals, one that does not, and a report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from airflow_horsies.core.submission import TaskInstanceKey
from airflow_horsies.core.task import TaskState, TaskView
from airflow_horsies.embedded.airflow_api import ENDED, AirflowApi
from airflow_horsies.embedded.errors import EmbeddedError
from airflow_horsies.embedded.progress import Progress
from airflow_horsies.embedded.stack import CONNECTION_ID

if TYPE_CHECKING:
    from airflow_horsies.client.client import Client

DAILY, MONTHLY, WEEKLY = "flights_daily", "flights_monthly", "horsies_reliability"
# The worker that the pipeline needs, and where it keeps what it makes.
WORKER_APP = "flights.worker:app"
LAKE, REPORTS = "lake", "reports"
MONTH = "2013-01"
ALL_DAYS = 31
# Fewer days begin with the one that heals.
FEW_FROM = 8
MOST_FEW = ALL_DAYS - FEW_FROM + 1
HEALED_DAY, HEALED_TASK, HEALED_CODE = "2013-01-08", "enrich", "WEATHER_UNAVAILABLE"
BROKEN_DAY, BROKEN_TASK, BROKEN_CODE = "2013-02-01", "validate", "QUALITY_GATE_FAILED"
DAYS_AT_ONCE = 4
LOOK_SECONDS = 1.0
# On a slow machine a day takes its time; what makes no progress at all for so long is stuck.
STUCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it went, for the summary."""

    asked: int
    days: Counter[str]
    month: dict[str, Any]
    quarantined: int
    healed: TaskView
    broken: TaskView
    report: dict[str, Any]
    links: dict[str, str]

    @property
    def problems(self) -> list[str]:
        """What did not go as it should."""
        expected = {
            f"{self.asked} days succeeded": self.days == {"success": self.asked},
            f"the roll-up of {MONTH} has them all": self.month.get("days", 0) >= self.asked,
            # Whoever kills the worker meanwhile adds an attempt.
            f"the weather of {HEALED_DAY} was had after a retry": (
                self.healed.state is TaskState.COMPLETED
                and HEALED_CODE in [each.error_code for each in self.healed.attempts]
            ),
            f"{BROKEN_DAY} failed the quality gate": (
                self.broken.state is TaskState.FAILED and self.broken.error_code == BROKEN_CODE
            ),
        }
        return [what for what, holds in expected.items() if not holds]


def tell_story(base_url: str, progress: Progress, days: int = ALL_DAYS) -> Outcome:
    """Run everything, or find what an earlier demo has run already."""
    # Only now: Airflow reads its settings from the environment when it is imported.
    from airflow_horsies.client.ledger import list_reports
    from airflow_horsies.hook import HorsiesHook
    from airflow_horsies.links import report_path

    with AirflowApi(base_url) as api, HorsiesHook(CONNECTION_ID).client as client:
        with progress.step("Airflow reads the DAGs"):
            _until(lambda: not api.missing_dags((DAILY, MONTHLY, WEEKLY)), "the DAGs")
            for dag_id in (DAILY, MONTHLY, WEEKLY):
                api.unpause(dag_id)
        first_day = 1 if days == ALL_DAYS else FEW_FROM
        first, last = (f"{MONTH}-{day:02}T00:00:00Z" for day in (first_day, first_day + days - 1))
        _rerun_failed(api, first, last)
        api.backfill(DAILY, first, last, at_once=DAYS_AT_ONCE)
        with progress.step(f"Backfilling January 2013 through {DAILY} (the first use of Spark takes a while)") as step:
            runs = _wait_for_days(api, first, last, days, step.tell)
        with progress.step("The roll-up of the month, which its last missing day triggers"):
            if days < ALL_DAYS:
                api.trigger(MONTHLY, f"demo__{days}_days", month=MONTH)
            month = _wait_for_month(api, days)
        with progress.step(f"{BROKEN_DAY}, whose delivery is damaged"):
            broken_run = f"manual__{BROKEN_DAY}"
            api.trigger(DAILY, broken_run, logical_date=f"{BROKEN_DAY}T00:00:00Z")
            _wait_for_run(api, DAILY, broken_run)
        with progress.step("The reliability report of this week"):
            report = _make_report(api)
        healed_run = next(run["dag_run_id"] for run in runs if run["logical_date"].startswith(HEALED_DAY))
        last_run = runs[-1]["dag_run_id"]
        (shown,) = list_reports(client, limit=1)
        origin = f"http://{urlsplit(base_url).netloc}"
        return Outcome(
            asked=days,
            days=Counter(run["state"] for run in runs),
            month=month,
            quarantined=sum(
                api.xcom(DAILY, run["dag_run_id"], "validate")["quarantined"]
                for run in runs
                if run["state"] == "success"
            ),
            healed=_task_of(client, healed_run, HEALED_TASK),
            broken=_task_of(client, broken_run, BROKEN_TASK),
            report=report,
            links={
                "The pipeline's last day": f"{base_url}/dags/{DAILY}/runs/{quote(last_run)}",
                "The healed task's attempts": (
                    f"{base_url}/dags/{DAILY}/runs/{quote(healed_run)}/tasks/{HEALED_TASK}/plugin/horsies-task"
                ),
                "The report": f"{origin}{report_path(shown)}",
            },
        )


def _rerun_failed(api: AirflowApi, first: str, last: str) -> None:
    """What failed in an earlier demo must not fail this one."""
    days = api.runs(DAILY, logical_date_gte=first, logical_date_lte=last, state="failed")
    for dag_id, runs in ((DAILY, days), (MONTHLY, api.runs(MONTHLY, state="failed"))):
        for run in runs:
            api.clear(dag_id, run["dag_run_id"])


def _wait_for_days(
    api: AirflowApi, first: str, last: str, days: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []

    def all_ended() -> bool:
        nonlocal runs
        runs = api.runs(DAILY, logical_date_gte=first, logical_date_lte=last)
        states = Counter(run["state"] for run in runs)
        for run in runs:
            if run["state"] == "failed":
                raise EmbeddedError(_failed(api, DAILY, run["dag_run_id"]))
        tell(f"{states['success']} of {days} days done, {states['running']} under way")
        return states["success"] == days

    _until(all_ended, "the end of the backfill", progress=lambda: sum(run["state"] in ENDED for run in runs))
    return sorted(runs, key=lambda run: str(run["logical_date"]))


def _wait_for_month(api: AirflowApi, days: int) -> dict[str, Any]:
    """What the roll-up returned that found all days."""
    found: dict[str, Any] = {}

    def complete() -> bool:
        for run in reversed(api.runs(MONTHLY)):
            if run["state"] == "failed":
                raise EmbeddedError(_failed(api, MONTHLY, run["dag_run_id"]))
            if run["state"] == "success":
                months = {each["month"]: each for each in api.xcom(MONTHLY, run["dag_run_id"], "roll_up")}
                found.update(months.get(MONTH, {}))
                return bool(found.get("days", 0) >= days)
        return False

    _until(complete, "the roll-up")
    return found


def _make_report(api: AirflowApi) -> dict[str, Any]:
    now = datetime.now(UTC)
    monday = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=now.weekday())
    run_id = f"demo__{now:%Y-%m-%dT%H%M%S}"
    period = {"start": monday.isoformat(), "end": (monday + timedelta(days=7)).isoformat()}
    api.trigger(WEEKLY, run_id, **period)
    if _wait_for_run(api, WEEKLY, run_id) != "success":
        raise EmbeddedError(_failed(api, WEEKLY, run_id))
    report: dict[str, Any] = api.xcom(WEEKLY, run_id, "report")
    return report


def _wait_for_run(api: AirflowApi, dag_id: str, run_id: str) -> str:
    def state() -> str:
        return str(api.run(dag_id, run_id)["state"])

    _until(lambda: state() in ENDED, f"the end of {dag_id}")
    return state()


def _failed(api: AirflowApi, dag_id: str, run_id: str) -> str:
    """What to tell of a run that failed, with what its tasks say."""
    errors = "".join(f"\n  {task_id}: {error}" for task_id, error in api.errors(dag_id, run_id).items())
    return f"The run {run_id} of {dag_id} failed{errors or '; Airflow shows why.'}"


def _until(holds: Callable[[], bool], what: str, *, progress: Callable[[], object] = lambda: None) -> None:
    """Look until it holds; an error when nothing has moved for long."""
    seen: object = None
    since = time.monotonic()
    while not holds():
        if (now := progress()) != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since > STUCK_SECONDS:
            raise EmbeddedError(f"Nothing has moved for {STUCK_SECONDS / 60:.0f} minutes while waiting for {what}.")
        time.sleep(LOOK_SECONDS)


def _task_of(client: Client, run_id: str, task_id: str) -> TaskView:
    """What a task instance of the daily DAG submitted last."""
    sent = client.read_submissions(TaskInstanceKey(dag_id=DAILY, run_id=run_id, task_id=task_id))
    if not sent:
        raise EmbeddedError(f"The task {task_id} of {DAILY}, run {run_id}, has sent nothing; Airflow shows why.")
    return client.read_task(sent[-1].horsies_task_id)
