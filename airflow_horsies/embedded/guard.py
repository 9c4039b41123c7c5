"""Runs one command and ends its whole process tree, even if the launcher is killed; started by ``process.py``.

    guard.py LAUNCHER_PID STOP_SIGNAL GRACE_SECONDS UID:GID|- REPORT_FD COMMAND...

As a subreaper it inherits every descendant whose parent died, so its process tree stays complete.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Also sent when only the thread that started the guard ends, so it must differ from a stop request.
LAUNCHER_MAY_BE_GONE = signal.SIGUSR1
STOP_REQUESTS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
WATCHED = STOP_REQUESTS | {LAUNCHER_MAY_BE_GONE, signal.SIGCHLD}
ORPHANED_GRACE_SECONDS = 5.0
LEFT_OVER_GRACE_SECONDS = 3.0
KILL_PATIENCE_SECONDS = 10.0


def main(arguments: list[str]) -> int:
    launcher_pid, stop_signal, grace_seconds, user, report_fd, *command = arguments
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, LAUNCHER_MAY_BE_GONE)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    if os.getppid() != int(launcher_pid):
        return 1
    leader = _start(command, user, signal.Signals(int(stop_signal)), int(report_fd))
    os.write(int(report_fd), b"%d\n" % leader)
    os.close(int(report_fd))

    exit_code = _watch(leader, int(launcher_pid), int(stop_signal), float(grace_seconds))
    _end_descendants(LEFT_OVER_GRACE_SECONDS)
    return exit_code


def _watch(leader: int, launcher_pid: int, stop_signal: int, grace_seconds: float) -> int:
    """Wait until the leader ends; stop it on request or when the launcher is gone."""
    deadline = float("inf")
    orphaned = False
    while True:
        received = signal.sigtimedwait(WATCHED, 1.0)
        exit_code = _reap().get(leader)
        if exit_code is not None:
            return exit_code
        now = time.monotonic()
        asked = received is not None and received.si_signo in STOP_REQUESTS
        if not orphaned and os.getppid() != launcher_pid:
            # Its siblings, such as the database, end at the same time, so a long wait is useless.
            orphaned = asked = True
            grace_seconds = min(grace_seconds, ORPHANED_GRACE_SECONDS)
        if asked:
            os.kill(leader, stop_signal)
            deadline = min(deadline, now + grace_seconds)
        if now > deadline:
            os.kill(leader, signal.SIGKILL)


def _start(command: list[str], user: str, death_signal: signal.Signals, report_fd: int) -> int:
    guard_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(report_fd)
        if user != "-":
            uid, gid = (int(part) for part in user.split(":"))
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        # Set after the change of user, which clears it.
        prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != guard_pid:
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"Cannot run {command[0]}: {error}\n".encode())
        os._exit(127)


def _end_descendants(grace_seconds: float) -> None:
    """Stop the processes that the leader left behind, then kill them."""
    for pid in descendants(os.getpid()):
        _signal(pid, signal.SIGTERM)
    kill_at = time.monotonic() + grace_seconds
    give_up = kill_at + KILL_PATIENCE_SECONDS
    while (left := descendants(os.getpid())) and time.monotonic() < give_up:
        if time.monotonic() > kill_at:
            for pid in left:
                _signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap()


def descendants(ancestor: int) -> list[int]:
    """All descendants of a process, including zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        parent = int(status.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    unvisited = [ancestor]
    while unvisited:
        below = children.get(unvisited.pop(), [])
        found.extend(below)
        unvisited.extend(below)
    return found


def _reap() -> dict[int, int]:
    """Collect every child that has ended; maps process ids to exit codes as a shell reports them."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        code = os.waitstatus_to_exitcode(status)
        ended[pid] = code if code >= 0 else 128 - code


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def prctl(option: int, value: int) -> None:
    """Call prctl of Linux for this process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
