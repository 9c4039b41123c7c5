"""Allows one running stack per folder, until the last of its processes has ended."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from airflow_horsies.embedded.errors import EmbeddedError

# How long a killed launcher may still appear alive, and how long its processes may need to end.
DYING_SECONDS = 1.0
REMNANTS_SECONDS = 40.0


class FolderLock:
    """A file lock that the started processes inherit, so that it lasts until the last of them ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def acquire(self) -> None:
        """Take the lock, after the processes of a killed launcher have ended; an error names a living launcher."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        began = time.monotonic()
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode().strip()
                if time.monotonic() - began > (DYING_SECONDS if _alive(holder) else REMNANTS_SECONDS):
                    os.close(descriptor)
                    raise EmbeddedError(
                        f"{self.path.parent} is in use by process {holder or '(unknown)'}. "
                        "Stop that process, or choose another folder."
                    ) from None
                time.sleep(0.1)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _alive(pid: str) -> bool:
    try:
        status = Path("/proc", pid, "stat").read_text(errors="replace")
    except OSError:
        return False
    # A zombie has ended, but its parent has not collected it.
    return pid.isdigit() and status.rpartition(")")[2].split()[0] != "Z"
