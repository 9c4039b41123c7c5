"""A process that has Airflow imported, and runs commands and scripts in forks of itself: each would need ten seconds.

``airflow`` and ``python`` on the ``PATH`` of the tests are small clients of it.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path

# Both a script for sh and one for Python: the path of an interpreter in a first line must have no space.
CLIENT = """\
#!/bin/sh
''':'
exec "{python}" -IS "$0" "$@"
':'''
import json, os, socket, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
if name == "python" and arguments[:2] != ["-m", "airflow_horsies.cli"] and not arguments[0].endswith(".py"):
    os.execv({python!r}, [{python!r}, *arguments])
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
order = dict(name=name, arguments=arguments, folder=os.getcwd(), environ=dict(os.environ))
socket.send_fds(server, [json.dumps(order).encode()], [0, 1, 2])
sys.exit((server.recv(1) or b"\\x01")[0])
"""
MAX_ORDER_BYTES = 1 << 18


def make_clients(folder: Path, path: Path) -> None:
    folder.mkdir()
    for name in ("airflow", "python"):
        (folder / name).write_text(CLIENT.format(python=sys.executable, path=str(path)))
        (folder / name).chmod(0o755)


def main(path: str) -> None:
    import airflow.__main__

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        order, descriptors, _, _ = socket.recv_fds(connection, MAX_ORDER_BYTES, 3)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = _run(json.loads(order), descriptors, airflow.__main__.main)
            connection.send(bytes([code]))
            os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.close()


def _run(order: dict, descriptors: list[int], run_airflow) -> int:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    name, arguments = order["name"], order["arguments"]
    code: object = 0
    try:
        if name == "airflow":
            sys.argv = ["airflow", *arguments]
            run_airflow()
        elif arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


if __name__ == "__main__":
    main(sys.argv[1])
