"""The steps of the demo: a month of real flights, a failure that a retry fixes, one that it does not, a workflow that
waits for an approval, and a report."""

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
MODELS, MODELS_TASK = "flights_models", "models"
ALL_DAGS = (DAILY, MONTHLY, MODELS, WEEKLY)
# The app of the pipeline's worker, and the folders of its data.
WORKER_APP = "flights.worker:app"
LAKE, REPORTS = "lake", "reports"
MONTH = "2013-01"
ALL_DAYS = 31
# A shorter backfill starts with the day that needs a retry.
SHORT_FIRST_DAY = 8
MAX_SHORT_DAYS = ALL_DAYS - SHORT_FIRST_DAY + 1
HEALED_DAY, HEALED_TASK, HEALED_CODE = "2013-01-08", "enrich", "WEATHER_UNAVAILABLE"
BROKEN_DAY, BROKEN_TASK, BROKEN_CODE = "2013-02-01", "validate", "QUALITY_GATE_FAILED"
# The branch without flights fails; the others are enough.
FAILING_BRANCH = {"HPN": "NO_FLIGHTS"}
MODELLED_AIRPORTS = 3
# The node before the approval, the signal, and who sends it.
COMPARED, APPROVED, SENDER = "compare", "approved", "the demo"
DAYS_AT_ONCE = 4
POLL_SECONDS = 1.0
# A day can take long on a slow machine. Without any progress for this long, the demo is stuck.
STUCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The results of the demo, for the summary."""

    expected_days: int
    days: Counter[str]
    month: dict[str, Any]
    quarantined: int
    models: dict[str, Any]
    healed: TaskView
    broken: TaskView
    report: dict[str, Any]
    links: dict[str, str]

    @property
    def problems(self) -> list[str]:
        """The expectations that were not met."""
        expected = {
            f"Not all of {self.expected_days} days succeeded.": self.days == {"success": self.expected_days},
            f"The roll-up of {MONTH} lacks days.": self.month.get("days", 0) >= self.expected_days,
            "The models of the airports were not published after the approval.": (
                self.models.get("models") == MODELLED_AIRPORTS
                and self.models.get("left_out") == FAILING_BRANCH
                and self.models.get("approved_by") == SENDER
            ),
            # A worker that is killed meanwhile adds an attempt.
            f"The weather of {HEALED_DAY} was not read after a retry.": (
                self.healed.state is TaskState.COMPLETED
                and HEALED_CODE in [attempt.error_code for attempt in self.healed.attempts]
            ),
            f"{BROKEN_DAY} did not fail the quality gate.": (
                self.broken.state is TaskState.FAILED and self.broken.error_code == BROKEN_CODE
            ),
        }
        return [problem for problem, is_met in expected.items() if not is_met]


def run_story(base_url: str, progress: Progress, days: int = ALL_DAYS) -> Outcome:
    """Run everything that an earlier demo has not run already."""
    # Imported here, because Airflow reads its settings from the environment during import.
    from airflow_horsies.client.ledger import list_reports
    from airflow_horsies.hook import HorsiesHook
    from airflow_horsies.links import report_path

    with AirflowApi(base_url) as api, HorsiesHook(CONNECTION_ID).client as client:
        with progress.step("Waiting for Airflow to read the DAGs"):
            _until(lambda: not api.missing_dags(ALL_DAGS), "the DAGs")
            for dag_id in ALL_DAGS:
                api.unpause(dag_id)
        first_day = 1 if days == ALL_DAYS else SHORT_FIRST_DAY
        first, last = (f"{MONTH}-{day:02}T00:00:00Z" for day in (first_day, first_day + days - 1))
        _rerun_failed(api, first, last)
        api.backfill(DAILY, first, last, at_once=DAYS_AT_ONCE)
        with progress.step(f"Backfilling January 2013 with {DAILY} (the first use of Spark takes a while)") as step:
            runs = _wait_for_days(api, first, last, days, step.update)
        with progress.step("Rolling up the month, triggered by its last missing day"):
            if days < ALL_DAYS:
                api.trigger(MONTHLY, f"demo__{days}_days", month=MONTH)
            month = _wait_for_month(api, days)
        with progress.step("Fitting a model of delays for each airport, in one workflow"):
            models_run = f"demo__{days}_days"
            api.trigger(MODELS, models_run, month=MONTH)
            _until(lambda: _awaits_approval(api, client, models_run), "the models of the airports")
        with progress.step("Approving the models with a signal"):
            models = _approve(api, client, models_run)
        with progress.step(f"Processing {BROKEN_DAY}, whose data is damaged"):
            broken_run = _run_broken_day(api)
        with progress.step("Making the reliability report of this week"):
            report = _make_report(api)
        healed_run = next(run["dag_run_id"] for run in runs if run["logical_date"].startswith(HEALED_DAY))
        (shown,) = list_reports(client, limit=1)
        return Outcome(
            expected_days=days,
            days=Counter(run["state"] for run in runs),
            month=month,
            quarantined=sum(
                api.xcom(DAILY, run["dag_run_id"], "validate")["quarantined"]
                for run in runs
                if run["state"] == "success"
            ),
            models=models,
            healed=_task_of(client, healed_run, HEALED_TASK),
            broken=_task_of(client, broken_run, BROKEN_TASK),
            report=report,
            links=_links(base_url, runs[-1]["dag_run_id"], healed_run, models_run, report_path(shown)),
        )


def _links(base_url: str, last_run: str, healed_run: str, models_run: str, report: str) -> dict[str, str]:
    daily = f"{base_url}/dags/{DAILY}/runs"
    return {
        "The pipeline's last day": f"{daily}/{quote(last_run)}",
        "The healed task's attempts": f"{daily}/{quote(healed_run)}/tasks/{HEALED_TASK}/plugin/horsies-task",
        "The workflow": f"{base_url}/dags/{MODELS}/runs/{quote(models_run)}/tasks/{MODELS_TASK}/plugin/horsies-task",
        "The report": f"http://{urlsplit(base_url).netloc}{report}",
    }


def _awaits_approval(api: AirflowApi, client: Client, run_id: str) -> bool:
    """Whether the models are compared, so that the workflow waits; or whether the run has ended."""
    if api.run(MODELS, run_id)["state"] in ENDED:
        return True
    workflow = _models_workflow(client, run_id)
    return workflow is not None and any(
        node.name == COMPARED and node.state.is_terminal for node in client.read_workflow(workflow).nodes
    )


def _approve(api: AirflowApi, client: Client, run_id: str) -> dict[str, Any]:
    """Let the workflow go on, unless an earlier demo did so; what it published."""
    workflow = None if api.run(MODELS, run_id)["state"] in ENDED else _models_workflow(client, run_id)
    if workflow is not None and not client.read_workflow(workflow).state.is_terminal:
        client.signal(workflow, APPROVED, {"by": SENDER}, dedup_key="demo", sent_by=SENDER)
    if _wait_for_run(api, MODELS, run_id) != "success":
        raise EmbeddedError(_failed(api, MODELS, run_id))
    published: dict[str, Any] = api.xcom(MODELS, run_id, MODELS_TASK)
    return published


def _models_workflow(client: Client, run_id: str) -> str | None:
    """The latest workflow that the run has started."""
    sent = client.read_submissions(TaskInstanceKey(dag_id=MODELS, run_id=run_id, task_id=MODELS_TASK))
    return sent[-1].horsies_task_id if sent else None


def _run_broken_day(api: AirflowApi) -> str:
    run_id = f"manual__{BROKEN_DAY}"
    api.trigger(DAILY, run_id, logical_date=f"{BROKEN_DAY}T00:00:00Z")
    _wait_for_run(api, DAILY, run_id)
    return run_id


def _rerun_failed(api: AirflowApi, first: str, last: str) -> None:
    """Run failed runs of an earlier demo again, also those that failed while it was interrupted and have not ended."""
    of_days = {"logical_date_gte": first, "logical_date_lte": last}
    for dag_id, query in ((DAILY, of_days), (MONTHLY, {}), (MODELS, {})):
        failed = {run["dag_run_id"] for run in api.runs(dag_id, **query, state="failed")}
        for run_id in sorted(failed.union(api.runs_with_failures(dag_id, **query))):
            api.clear(dag_id, run_id)


def _wait_for_days(
    api: AirflowApi, first: str, last: str, days: int, update: Callable[[str], None]
) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []

    def all_ended() -> bool:
        nonlocal runs
        runs = api.runs(DAILY, logical_date_gte=first, logical_date_lte=last)
        states = Counter(run["state"] for run in runs)
        for run in runs:
            if run["state"] == "failed":
                raise EmbeddedError(_failed(api, DAILY, run["dag_run_id"]))
        update(f"{states['success']} of {days} days done, {states['running']} running")
        return states["success"] == days

    _until(all_ended, "the end of the backfill", progress=lambda: sum(run["state"] in ENDED for run in runs))
    return sorted(runs, key=lambda run: str(run["logical_date"]))


def _wait_for_month(api: AirflowApi, days: int) -> dict[str, Any]:
    """The result of the roll-up that contains all days."""
    found: dict[str, Any] = {}

    def complete() -> bool:
        for run in reversed(api.runs(MONTHLY)):
            if run["state"] == "failed":
                raise EmbeddedError(_failed(api, MONTHLY, run["dag_run_id"]))
            if run["state"] == "success":
                months = {month["month"]: month for month in api.xcom(MONTHLY, run["dag_run_id"], "roll_up")}
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
    """The error message of a failed run, with the errors of its tasks."""
    errors = "".join(f"\n  {task_id}: {error}" for task_id, error in api.errors(dag_id, run_id).items())
    return f"Run {run_id} of {dag_id} failed.{errors or ' See its logs in Airflow.'}"


def _until(holds: Callable[[], bool], what: str, *, progress: Callable[[], object] = lambda: None) -> None:
    """Poll until it holds; raises an error if there is no progress for a long time."""
    seen: object = None
    since = time.monotonic()
    while not holds():
        if (now := progress()) != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since > STUCK_SECONDS:
            raise EmbeddedError(
                f"There was no progress for {STUCK_SECONDS / 60:.0f} minutes while waiting for {what}. See the logs."
            )
        time.sleep(POLL_SECONDS)


def _task_of(client: Client, run_id: str, task_id: str) -> TaskView:
    """The last task that a task instance of the daily DAG submitted."""
    sent = client.read_submissions(TaskInstanceKey(dag_id=DAILY, run_id=run_id, task_id=task_id))
    if not sent:
        raise EmbeddedError(f"Task {task_id} of {DAILY}, run {run_id}, has sent nothing. See its log in Airflow.")
    return client.read_task(sent[-1].horsies_task_id)
