"""Sends many jobs with procrastinate; see Peer."""

import os
import sys
import time

from procrastinate import App, SyncPsycopgConnector

app = App(connector=SyncPsycopgConnector(conninfo=os.environ["PEER_DATABASE"]))


@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b


with app.open():
    app.schema_manager.apply_schema()
    for line in sys.stdin:
        jobs = [{"a": number, "b": 1} for number in range(int(line))]
        begun = time.perf_counter()
        ids = add.batch_defer(*jobs)
        elapsed = time.perf_counter() - begun
        assert len(set(ids)) == len(jobs)
        print(elapsed, flush=True)
