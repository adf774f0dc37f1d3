"""The rank program: what every launcher starts, once per slot, in place of the script itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from trackside_agent import processes, records

SCOPED = "TRACKSIDE_SCOPED"
OPENMPI_NAMES = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}


def rank_environment(request: dict[str, Any], inherited: dict[str, str]) -> dict[str, str]:
    """Return the script's environment: the launcher's, the rendezvous', the request's own on top.

    Raises SystemExit when the launcher gave no rank, or the request knows no node for it.
    """
    environment = dict(inherited)
    for name, openmpi_name in OPENMPI_NAMES.items():
        if name not in environment and openmpi_name in environment:
            environment[name] = environment[openmpi_name]
    if "RANK" not in environment:
        raise SystemExit("no RANK in the environment: the rank program is started by a launcher (see launch.sh)")
    environment.setdefault("LOCAL_WORLD_SIZE", str(node_of(request, int(environment["RANK"]))["slots"]))
    environment["MASTER_ADDR"] = request["master_addr"]
    environment["MASTER_PORT"] = str(request["master_port"])
    interface = node_of(request, int(environment["RANK"]))["interface"]
    if interface:
        environment["GLOO_SOCKET_IFNAME"] = interface
        environment["NCCL_SOCKET_IFNAME"] = f"={interface}"  # `=`: this one, not all that begin with it
    environment[processes.RUN_VARIABLE] = request["id"]
    environment["TRACKSIDE_OUTPUT"] = request["output_dir"]
    if request.get("data_dir"):
        environment["TRACKSIDE_DATA"] = request["data_dir"]
    environment.update(request["environment"])
    return environment


def node_of(request: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return the request's node that holds `rank`: slots are filled in the order of the hostfile."""
    first = 0
    for node in request["nodes"]:
        if first <= rank < first + node["slots"]:
            found: dict[str, Any] = node
            return found
        first += node["slots"]
    raise SystemExit(f"rank {rank} is beyond the {first} slots of this run")


def main(run_dir: Path, launcher_arguments: list[str]) -> int:
    """Enter the run's cgroup, run the script to its end, record its exit status, and return it."""
    request = records.read_request(run_dir)
    environment = rank_environment(request, dict(os.environ))
    rank = int(environment["RANK"])
    manager = processes.user_manager()
    if manager and SCOPED not in os.environ:
        command = processes.scope_command(request["id"], rank, [sys.executable, *sys.argv])
        manager[SCOPED] = "1"
        manager[processes.RUN_VARIABLE] = request["id"]
        os.execvpe(command[0], command, manager)
    environment.pop(SCOPED, None)
    command = [request["python"], "-u", request["script"], *launcher_arguments, *request["arguments"]]
    return _run(command, request, environment, run_dir)


def _run(command: list[str], request: dict[str, Any], environment: dict[str, str], run_dir: Path) -> int:
    rank = int(environment["RANK"])
    record = {"rank": rank, "host": socket.gethostname(), "started": round(time.time(), 3)}
    for folder in (run_dir / "logs", run_dir / "ranks", Path(request["output_dir"])):
        folder.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        command,
        cwd=request["code_dir"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )

    def forward(number: int, _frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    records.write_json(run_dir / "ranks" / f"{rank}.json", {**record, "pid": child.pid})
    if child.stdout is None:
        raise RuntimeError("the script's output is not a pipe")
    launcher_listens = True
    with (run_dir / "logs" / f"rank{rank}.log").open("ab", buffering=0) as log:
        for line in iter(child.stdout.readline, b""):
            log.write(line)
            launcher_listens = launcher_listens and _show(line)
    status = child.wait()
    records.write_json(
        run_dir / "ranks" / f"{rank}.json",
        {**record, "pid": child.pid, "ended": round(time.time(), 3), "returncode": status},
    )
    return status if status >= 0 else 128 - status


def _show(line: bytes) -> bool:
    """Pass one line on, and say whether anyone listens: a launcher that is gone must not end the script."""
    try:
        os.write(sys.stdout.fileno(), line)
    except BrokenPipeError:
        return False
    return True
