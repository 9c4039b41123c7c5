"""Seeded trials: faults and changes of all kinds on the real stack under load, and what must hold is checked.

python -m tests.chaos --seed 7 --faults 5000 --out benchmarks/chaos.json
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tests.chaos.airflow_load import AirflowLoad, ApiWatcher
from tests.chaos.broken import ALL_RULES
from tests.chaos.facts import Violation
from tests.chaos.faults import Injector
from tests.chaos.gathering import Watcher, gather, left_in_database, left_on_machine
from tests.chaos.invariants import check
from tests.chaos.items import check_items
from tests.chaos.load import LightLoad
from tests.chaos.places import Unable, leave_mounts_of_others
from tests.chaos.plan import CHANGE_KINDS, FAULT_KINDS, KINDS, POINTS, faults
from tests.chaos.stack import Stack

TELL_SECONDS = 5.0
SETTLE_SECONDS = 300.0
AGAIN_SECONDS, AGAIN_EVERY = 30.0, 5.0
WONDER_SECONDS = 20.0
ACTIVITY = (
    "SELECT format('%s %s, waits for %s since %s: %s', pid, application_name, wait_event, now() - state_change, query) "
    "FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
SHOWN_VIOLATIONS = 30
SHOWN_NOTES = 40


class Trials:
    """One run: a stack, its load, faults one after the other, and the checks."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.violations: list[Violation] = []
        self.not_tried: list[str] = []
        self.seconds = 0.0
        self._options = options
        self._begun = time.monotonic()
        self._told = 0.0
        self.stack = Stack(folder, with_airflow=not options.no_airflow, say=self._say, broken=options.broken)
        self.injector = Injector(self.stack)
        self.light = LightLoad(self.stack, options.seed, self.injector.happened)
        self.injector.load = self.injector.changes.light = self.light
        self.airflow: AirflowLoad | None = None
        self.api = ApiWatcher(self.stack)
        self.watcher = Watcher(self.stack)

    def run(self) -> None:
        folder = self.stack.folder
        try:
            self.stack.start()
            self.light.start()
            if self.stack.airflow is not None:
                self.airflow = AirflowLoad(self.stack)
                self.injector.changes.airflow = self.airflow
                self.airflow.start()
                self.api.start()
            self.watcher.start()
            self._trouble()
            self._settle()
            self._end_load()
            self.api.end()
            self.stack.stop_clients()
            self.violations += self.api.violations
            self.violations += self.watcher.end()
            facts = gather(self.stack, self.light, self.airflow, self.watcher.history)
            self.violations += check(facts)
            self.violations += check_items(facts)
            self.violations += left_in_database(self.stack)
            ports = self.stack.ports()
        finally:
            self._say("stopping")
            self.injector.finish()
            self._end_load()
            self.api.end()
            self.stack.stop()
            self._write_journal()
        self.violations += left_on_machine(folder, ports)

    def _trouble(self) -> None:
        options = self._options
        begun = time.monotonic()
        self._say(f"{options.faults} faults and changes, seed {options.seed}")
        for fault in faults(options.seed, pace=options.pace, able=self.stack.able, only=options.only):
            self._tell_now_and_then()
            time.sleep(fault.pause)
            self.injector.inject(fault)
            if self.light.error is not None:
                raise self.light.error
            if self.injector.total >= options.faults:
                break
        self._try_again()
        self.injector.finish()
        self.seconds = time.monotonic() - begun

    def _try_again(self) -> None:
        """Kinds that had no luck so far, while there is still load."""
        give_up = time.monotonic() + AGAIN_SECONDS
        while (missed := self.injector.never_happened()) and time.monotonic() < give_up:
            for fault in missed:
                self.injector.inject(fault)
            time.sleep(AGAIN_EVERY)

    def _settle(self) -> None:
        """No more faults: everything that is open must end."""
        self._say("no more faults; waiting for the end of what is open")
        self.light.drain()
        if self.airflow is not None:
            self.airflow.drain()
        begun = time.monotonic()
        asked = False
        while self.light.open_count or (self.airflow is not None and self.airflow.open_count) or self._live_count():
            if time.monotonic() - begun > SETTLE_SECONDS:
                self._say("what is open does not end")
                self.stack.tell_processes()
                return
            if time.monotonic() - begun > WONDER_SECONDS and not asked:
                asked = True
                self.stack.ask_workers_where_they_are()
                for said in self.light.ask_where_it_is():
                    self._say(f"open: {said}")
                for (said,) in self.stack.query(ACTIVITY):
                    self._say(f"busy: {said}")
            self._tell_now_and_then()
            time.sleep(0.2)

    def _live_count(self) -> int:
        """Also work that nobody waits for has to end."""
        ((count,),) = self.stack.query("SELECT count(*) FROM horsies_tasks")
        return int(count)

    def _end_load(self) -> None:
        for load in (self.light, self.airflow):
            if load is not None and load.is_alive():
                load.end()

    def _write_journal(self) -> None:
        notes = [(at, f"{light.key}: {said}") for light in self.light.lights for at, said in light.notes]
        lines = [f"{at - self._begun:8.2f}  {said}\n" for at, said in sorted([*self.injector.journal, *notes])]
        (self.stack.folder / "journal.txt").write_text("".join(lines))

    def _tell_now_and_then(self) -> None:
        if time.monotonic() - self._told < TELL_SECONDS:
            return
        self._told = time.monotonic()
        light, airflow = self.light, self.airflow
        said = f"{self.injector.total:5} faults and changes  light {light.over_count} done, {light.open_count} open"
        if airflow is not None:
            said += f"  runs of Airflow {airflow.over_count} done, {airflow.open_count} open"
        said += f"  violations {len(self.watcher.history.violations) + len(self.injector.errors)}"
        self._say(said)

    def _say(self, text: str) -> None:
        if text.startswith("NOT TRIED"):
            self.not_tried.append(text.removeprefix("NOT TRIED: "))
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        print(f"{minutes:3}:{seconds:02}  {text}", flush=True)

    # -- the end -----------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        counts = self.injector.counts
        faults_, changes = ({kind: counts[kind] for kind in kinds} for kinds in (FAULT_KINDS, CHANGE_KINDS))
        return {
            "faults": sum(faults_.values()),
            "changes": sum(changes.values()),
            "violations": len(self.violations) + len(self.injector.errors),
            "violated": dict(Counter(violation.rule for violation in self.violations)),
            "seed": self._options.seed,
            "seconds": round(self.seconds, 1),
            "fault_kinds": faults_,
            "change_kinds": changes,
            "points_hit": dict(sorted(self.light.points_hit.items())),
            "light_instances": len(self.light.lights),
            "airflow_runs": len(self.airflow.runs) if self.airflow else 0,
            "rows_watched": len(self.watcher.history),
            "api_answers": self.api.answers,
            "api_slowest_seconds": round(self.api.slowest, 2),
            "ended_by_themselves": dict(self.stack.keeper.revived),
            "hung": dict(self.stack.keeper.hung),
            "not_tried": self.not_tried,
        }

    def _notes_of(self, violation: Violation) -> list[str]:
        """What happened to the light task instance that it is about."""
        notes = [note for light in self.light.lights if f"/{light.run_id}/" in violation.of for note in light.notes]
        return [f"{at - self._begun:8.2f}  {said}" for at, said in notes[-SHOWN_NOTES:]]

    def tell_end(self) -> None:
        report = self.report()
        print(f"\n{'kind':40} {'count':>7} {'no target':>10}")
        for kind, count in (report["fault_kinds"] | report["change_kinds"]).items():
            print(f"{kind:40} {count:7} {self.injector.without_target[kind]:10}")
        hit = self.light.points_hit
        print(f"\n{len(hit)} of {len(POINTS)} named points were hit; {self.light.missed} faults never reached theirs")
        print(f"not hit: {', '.join(point for point in POINTS if point not in hit) or 'none'}")
        for name, count in self.stack.keeper.revived.items():
            print(f"{name} ended by itself, and was started again, {count} times")
        for name, count in self.stack.keeper.hung.items():
            print(f"{name} hung, and was killed and started again, {count} times")
        for each in self.not_tried:
            print(f"NOT TRIED: {each}")
        for error in self.injector.errors:
            print(f"VIOLATION (seed {self._options.seed}) the trials themselves: {error}")
        for violation in self.violations[:SHOWN_VIOLATIONS]:
            print(f"VIOLATION (seed {self._options.seed}) {violation}")
            for said in self.injector.near(violation.at):
                print(f"    after {said}")
            for said in self._notes_of(violation):
                print(f"    {said}")
        if len(self.violations) > SHOWN_VIOLATIONS:
            print(f"… and {len(self.violations) - SHOWN_VIOLATIONS} more")
        print(
            f"\n{report['faults']} faults and {report['changes']} changes in {report['seconds'] / 60:.1f} minutes, "
            f"{report['light_instances']} light task instances, {report['airflow_runs']} runs of Airflow, "
            f"{report['violations']} violations, "
            f"seed {report['seed']}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="what all faults are drawn from")
    parser.add_argument("--faults", type=int, default=5000, help="how many, with changes (5000)")
    parser.add_argument("--pace", type=float, default=0.5, help="seconds between two, on average (0.5)")
    parser.add_argument("--no-airflow", action="store_true", help="light submitters only")
    parser.add_argument("--only", action="append", default=[], choices=list(KINDS), help="no other kinds")
    parser.add_argument("--break", dest="broken", choices=ALL_RULES, help="a rule to break on purpose")
    parser.add_argument("--out", type=Path, help="where to write the figures")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    parser.add_argument("--plan", action="store_true", help="print what would be drawn, and do nothing")
    options = parser.parse_args(arguments)
    if options.plan:
        able = {kind.needs or "" for kind in KINDS.values()}
        for fault in islice(faults(options.seed, pace=options.pace, able=able, only=options.only), options.faults):
            print(f"{fault.pause:6.2f} s  {fault}")
        return 0
    if os.geteuid() == 0:
        try:
            leave_mounts_of_others()
        except (Unable, OSError) as error:
            print(f"mounts cannot be kept apart: {error}")
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    print(f"seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="airflow-horsies-chaos-"))
    folder.chmod(0o711)
    trials = Trials(folder, options)
    try:
        trials.run()
    except KeyboardInterrupt:
        print("interrupted")
        return 130
    finally:
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    trials.tell_end()
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(trials.report(), indent=2) + "\n")
    return int(bool(trials.violations or trials.injector.errors))


if __name__ == "__main__":
    sys.exit(main())
