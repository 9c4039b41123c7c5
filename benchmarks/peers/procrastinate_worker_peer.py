"""Runs many short jobs through as many workers of procrastinate as ours has processes; see Peer."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
from procrastinate import SyncPsycopgConnector
from procrastinate_tasks import app

LEFT = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
WORKER = [sys.executable, "-m", "procrastinate", "--app", "procrastinate_tasks.app", "worker", "--concurrency", "10"]

database = os.environ["PEER_DATABASE"]
with (
    app.replace_connector(SyncPsycopgConnector(conninfo=database)) as sender,
    sender.open(),
    psycopg.connect(database, autocommit=True) as own,
):
    sender.schema_manager.apply_schema()
    workers = [
        subprocess.Popen(WORKER, cwd=Path(__file__).parent, stdout=sys.stderr)
        for _ in range(int(os.environ["PEER_PROCESSES"]))
    ]
    try:
        for line in sys.stdin:
            count = int(line)
            begun = time.perf_counter()
            sender.tasks["add"].batch_defer(*({"a": number, "b": 1} for number in range(count)))
            while own.execute(LEFT).fetchone() != (0,):
                assert all(worker.poll() is None for worker in workers)
                time.sleep(0.01)
            print(time.perf_counter() - begun, flush=True)
        assert own.execute("SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'").fetchone() == (0,)
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(timeout=30)
