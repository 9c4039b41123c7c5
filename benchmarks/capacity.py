"""What one server can commit: small transactions per second, with and without a notification.

Postgres lets one transaction with a notification commit at a time, on the whole server, and each waits for the disk.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import psutil
import psycopg

from airflow_horsies.embedded.postgres import EmbeddedPostgres

CLIENTS = (1, 4, 16)
INSERT = "INSERT INTO commits (client) VALUES (:client_id);"
NOTIFY = "SELECT pg_notify('commits', :client_id::text);"
SCRIPTS = {"plain": f"BEGIN;\n{INSERT}\nCOMMIT;\n", "notifying": f"BEGIN;\n{INSERT}\n{NOTIFY}\nCOMMIT;\n"}
RATE = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)


def measure_commits(postgres: EmbeddedPostgres, seconds: int) -> dict[str, dict[str, float]]:
    """Commits per second by kind and number of clients; the kinds take turns."""
    postgres.create_database("commits")
    with psycopg.connect(**postgres.conninfo("commits")) as connection:
        connection.execute("CREATE TABLE commits (client integer NOT NULL)")
    found: dict[str, dict[str, float]] = {kind: {} for kind in SCRIPTS}
    for clients in CLIENTS:
        for kind, rates in found.items():
            rates[str(clients)] = _rate(postgres, kind, clients, seconds)
            print(f"  {clients:>2} clients, {kind}: {rates[str(clients)]:,.0f} commits per second", flush=True)
    return found


def _rate(postgres: EmbeddedPostgres, kind: str, clients: int, seconds: int) -> float:
    program = Path(psutil.Process(postgres.process.pid).exe()).with_name("pgbench")
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SCRIPTS[kind])
        script.flush()
        options = ["--no-vacuum", f"--client={clients}", "--jobs=1", f"--time={seconds}", f"--file={script.name}"]
        done = subprocess.run([program, *options, postgres.dsn("commits")], check=True, capture_output=True, text=True)
    rate = RATE.search(done.stdout)
    assert rate, done.stdout
    return float(rate[1])
