"""The commands of ``airflow horsies``."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow_horsies.cli.definition import format_cursor
from airflow_horsies.cli.printing import (
    MAX_MESSAGE_CHARS,
    TEXT_FORMATS,
    escape_controls,
    first_line,
    print_count,
    print_data,
    short_time,
)
from airflow_horsies.cli.rerunning import rerun_instance
from airflow_horsies.cli.running import audited, command
from airflow_horsies.cli.watching import NewLines, Watch, explain_no_lines
from airflow_horsies.client import ledger
from airflow_horsies.client.client import Client
from airflow_horsies.client.health import Status, check_health
from airflow_horsies.client.waiting import wait_until_stopped
from airflow_horsies.core.attempts import ShownAttempt, recorded_attempts
from airflow_horsies.core.batch import ItemView
from airflow_horsies.core.catalog import KnownTask
from airflow_horsies.core.log import LogLine
from airflow_horsies.core.masking import mask_text
from airflow_horsies.core.submission import Submission, TaskInstanceKey
from airflow_horsies.core.task import CancelOutcome, TaskState, TaskView
from airflow_horsies.core.values import attempt_values, line_values
from airflow_horsies.core.wording import describe_metrics

NOTHING_KNOWN = "No worker of airflow_horsies.worker has recorded what it knows in the last seven days."


@command
def horsies_check(args: Namespace, client: Client) -> None:
    """``airflow horsies check``"""
    findings = []
    for finding in check_health(client):
        findings.append(finding)
        if args.output in TEXT_FORMATS:
            first, *rest = finding.message.splitlines()
            print(f"{finding.status:<5} {finding.check:<16} {first}", flush=True)
            for line in rest:
                print(f"{'':<23}{line}")
    if args.output not in TEXT_FORMATS:
        rows = [{"check": item.check, "status": str(item.status), "message": item.message} for item in findings]
        print_data(rows, args.output)
    if any(finding.status is Status.FAIL for finding in findings):
        sys.exit(1)


@command
@audited
def horsies_db_migrate(args: Namespace, client: Client) -> None:
    """``airflow horsies db migrate``"""
    applied = [
        {"version": migration.version, "name": migration.name}
        for migration in ledger.migrate_ledger(client, by_hand=True)
    ]
    if args.output not in TEXT_FORMATS:
        print_data(applied, args.output)
    elif applied:
        names = ", ".join(str(item["name"]) for item in applied)
        print(f"Applied {names}. The tables are now at version {ledger.latest_version()}.")
    else:
        print(f"The tables are already at version {ledger.latest_version()}.")


@command
@audited
def horsies_db_prune(args: Namespace, client: Client) -> None:
    """``airflow horsies db prune``"""
    count = ledger.prune_ledger(client)
    print_count(
        args, "forgotten", count, f"Removed {_submissions(count)} of tasks that are no longer in the horsies database."
    )


@command
@audited
def horsies_db_change_base_url(args: Namespace, client: Client) -> None:
    """``airflow horsies db change-base-url``"""
    changed = ledger.change_base_url(client, old=args.old, new=args.new)
    print_count(
        args,
        "changed",
        changed,
        f"Changed the base URL of {_submissions(changed)} in namespace {client.namespace!r} to {args.new}.",
    )


@command
def horsies_tasks(args: Namespace, client: Client) -> None:
    """``airflow horsies tasks``"""
    if args.known:
        known = client.read_catalog(name=args.task_name, queue=args.queue)
        in_text = args.output in TEXT_FORMATS
        print_data([_known_row(entry) if in_text else _known_values(entry) for entry in known], args.output)
        if not known:
            print(NOTHING_KNOWN, file=sys.stderr)
        return
    states = {state for states in args.state for state in states} if args.state else None
    page = client.list_tasks(
        states=states,
        queue=args.queue,
        task_name=args.task_name,
        error_code=args.error_code,
        before=args.before,
        limit=args.limit,
    )
    if args.output in TEXT_FORMATS:
        print_data([_task_row(task) for task in page.tasks], args.output)
    else:
        print_data([_task_values(task) for task in page.tasks], args.output)
    if page.next:
        more = f"More: --before {format_cursor(page.next)}"
        print(more, file=sys.stdout if args.output == "table" else sys.stderr)


@command
def horsies_attempts(args: Namespace, client: Client) -> None:
    """``airflow horsies attempts TASK_ID``"""
    if args.watch:
        _watch(args, client)
        return
    task = client.read_task(args.horsies_task_id)
    submissions = client.read_submissions_of_task(task.id)
    attempts = _read_attempts(client, task)
    if args.output not in TEXT_FORMATS:
        print_data(_all_values(task, submissions, attempts), args.output)
        return
    print(_headline(task, submissions))
    if attempts:
        print_data([_attempt_row(attempt) for attempt in attempts], args.output)
    else:
        print("No attempt has ended.")
    for attempt in attempts:
        if attempt.metrics:
            print(f"attempt {attempt.number}, metrics: {describe_metrics(attempt.metrics)}")


def _watch(args: Namespace, client: Client) -> None:
    task = client.read_task(args.horsies_task_id)
    submissions = client.read_submissions_of_task(task.id)
    if args.output in TEXT_FORMATS:
        print(_headline(task, submissions))
        watch = Watch(client, task.id)
        try:
            watch.look()
            (task,) = client.wait([task.id], meanwhile=watch.look)
            watch.finish(task)
        finally:
            watch.clear()
    else:
        (task,) = client.wait([task.id])
        print_data(_all_values(task, submissions, _read_attempts(client, task)), args.output)
    if task.state is not TaskState.COMPLETED:
        sys.exit(1)


@command
def horsies_items(args: Namespace, client: Client) -> None:
    """``airflow horsies items TASK_ID``"""
    states = {state for states in args.state for state in states} if args.state else set(TaskState)
    items = [item for item in client.read_items(args.horsies_task_id, values=False) if item.state in states]
    row = _item_row if args.output in TEXT_FORMATS else _item_values
    print_data([row(item) for item in items], args.output)


@command
def horsies_logs(args: Namespace, client: Client) -> None:
    """``airflow horsies logs TASK_ID``"""
    new = NewLines(client, args.horsies_task_id, attempt=args.attempt, item=args.item)
    lines: list[LogLine] = []
    is_text = args.output in TEXT_FORMATS

    def read() -> None:
        for line in new.read():
            if is_text:
                print(_line_text(line), flush=True)
            lines.append(line)

    read()
    if args.follow:
        (task,) = client.wait([args.horsies_task_id], meanwhile=read)
        if task.state is TaskState.CANCELLED:
            wait_until_stopped(client, [task.id])
        read()
    if not lines:
        # Raises TaskNotFound if the task is unknown.
        task = client.read_task(args.horsies_task_id)
        why = explain_no_lines(task, client.read_attempts([task.id]).get(task.id, ()), args.attempt)
        print(why, file=sys.stdout if is_text else sys.stderr)
    if not is_text:
        print_data([line_values(line) for line in lines], args.output)


@command
@audited
def horsies_cancel(args: Namespace, client: Client) -> None:
    """``airflow horsies cancel TASK_ID``"""
    outcome = client.cancel_task(args.horsies_task_id)
    state = client.read_task(args.horsies_task_id).state
    if args.output not in TEXT_FORMATS:
        print_data({"task_id": args.horsies_task_id, "outcome": str(outcome), "state": str(state)}, args.output)
        return
    match outcome:
        case CancelOutcome.CANCELLED:
            text = "was cancelled"
        case CancelOutcome.ALREADY_CANCELLED:
            text = "was already cancelled"
        case CancelOutcome.ALREADY_FINISHED:
            text = f"had already ended as {state}"
        case CancelOutcome.STILL_WANTED | CancelOutcome.REQUESTED:
            raise AssertionError("A cancel by id is either carried out or refused.")
    print(f"Task {args.horsies_task_id} {text}.")


@command
@audited
def horsies_signal(args: Namespace, client: Client) -> None:
    """``airflow horsies signal TARGET NAME``"""
    sender = f"airflow horsies signal, by {getpass.getuser()}"
    sent = client.signal(args.target, args.name, args.payload, dedup_key=args.dedup_key, sent_by=sender)
    if args.output not in TEXT_FORMATS:
        print_data(asdict(sent), args.output)
    elif sent.is_new:
        print(f"Sent the signal {sent.name} to {sent.target}. Tasks that it resumed: {sent.resumed}.")
    else:
        print(f"The signal {sent.name} was sent to {sent.target} before.")


@command
@audited
def horsies_rerun(args: Namespace, client: Client) -> None:
    """``airflow horsies rerun DAG_ID RUN_ID TASK_ID``"""
    instance = TaskInstanceKey(dag_id=args.dag_id, run_id=args.run_id, task_id=args.task_id, map_index=args.map_index)
    rerun = rerun_instance(client, instance, only_failed=args.failed or bool(args.item), items=args.item)
    if args.output not in TEXT_FORMATS:
        print_data(asdict(rerun), args.output)
        return
    print(rerun.describe())


def _known_row(known: KnownTask) -> dict[str, Any]:
    state = "live" if known.is_live else "ended"
    return {
        "kind": known.kind,
        "name": known.name,
        "parameters": known.signature,
        "queues": ", ".join(known.served_queues),
        "workers": f"{known.workers} {state}{', others disagree' if known.is_disputed else ''}",
        "seen_at": known.seen_at.isoformat(timespec="seconds"),
        "doc": (known.doc or "").partition("\n")[0][:MAX_MESSAGE_CHARS],
    }


def _known_values(known: KnownTask) -> dict[str, Any]:
    values = asdict(known)
    return {**values, "kind": str(known.kind), "seen_at": known.seen_at.isoformat()}


def _submissions(count: int) -> str:
    return "1 submission" if count == 1 else f"{count} submissions"


def _headline(task: TaskView, submissions: Sequence[Submission]) -> str:
    sent_by = [f"sent by {item.task_instance} (try {item.try_number})" for item in submissions]
    return ", ".join(
        [
            f"{task.task_name} {task.id}: {task.state}",
            f"queue {task.queue}",
            f"{task.retry_count} of {task.max_retries} retries used",
            *(sent_by or ["not sent by an Airflow task"]),
        ]
    )


def _task_row(task: TaskView) -> dict[str, Any]:
    return {
        "id": task.id,
        "task_name": task.task_name,
        "queue": task.queue,
        "state": str(task.state),
        "sent_at": short_time(task.sent_at),
        "finished_at": short_time(task.finished_at),
        "retries": f"{task.retry_count}/{task.max_retries}",
        "error_code": escape_controls(task.error_code or ""),
    }


def _task_values(task: TaskView) -> dict[str, Any]:
    return {
        "id": task.id,
        "task_name": task.task_name,
        "queue": task.queue,
        "priority": task.priority,
        "state": task.state,
        "sent_at": task.sent_at,
        "started_at": task.started_at,
        "finished_at": task.finished_at,
        "good_until": task.good_until,
        "retry_count": task.retry_count,
        "max_retries": task.max_retries,
        "error_code": task.error_code,
    }


def _read_attempts(client: Client, task: TaskView) -> list[ShownAttempt]:
    return recorded_attempts(task, client.read_attempts([task.id]).get(task.id, ()))


def _item_values(item: ItemView) -> dict[str, Any]:
    return {
        "item": item.number,
        "state": item.state,
        "tries": item.tries,
        "started_at": item.started_at,
        "finished_at": item.finished_at,
        "error_code": item.error_code,
        "error": item.message,
        "hostname": item.hostname,
    }


def _item_row(item: ItemView) -> dict[str, Any]:
    began, ended = item.started_at, item.finished_at
    return {
        "item": item.number,
        "state": str(item.state),
        "tries": item.tries,
        "started_at": short_time(began),
        "duration": f"{(ended - began).total_seconds():.2f} s" if began and ended else "",
        "error_code": escape_controls(item.error_code or ""),
        "error": first_line(item.message or ""),
        "hostname": item.hostname or "",
    }


def _attempt_row(attempt: ShownAttempt) -> dict[str, Any]:
    seconds = attempt.duration_seconds
    return {
        "attempt": attempt.number,
        "outcome": attempt.outcome,
        "started_at": short_time(attempt.started_at),
        "duration": "" if seconds is None else f"{seconds:.2f} s",
        "error_code": escape_controls(attempt.error_code or ""),
        "error": first_line(attempt.message or ""),
        "will_retry": "yes" if attempt.will_retry else "no",
        "worker": f"{attempt.hostname or '?'}:{attempt.pid or '?'}",
    }


def _all_values(task: TaskView, submissions: Sequence[Submission], attempts: Sequence[ShownAttempt]) -> dict[str, Any]:
    return {
        **_task_values(task),
        "sent_by": [_submission_values(submission) for submission in submissions],
        "attempts": [attempt_values(attempt) for attempt in attempts],
    }


def _line_text(line: LogLine) -> str:
    at = f"{line.logged_at:%Y-%m-%d %H:%M:%S}.{line.logged_at.microsecond // 1000:03d}"
    return f"{at} {line.level:<8} [attempt {line.attempt}] {escape_controls(mask_text(line.text))}"


def _submission_values(submission: Submission) -> dict[str, Any]:
    return {
        "namespace": submission.namespace,
        **asdict(submission.task_instance),
        "try_number": submission.try_number,
        "submitted_at": submission.submitted_at,
    }
