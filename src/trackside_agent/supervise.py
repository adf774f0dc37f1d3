"""The head's agent: launches a run, waits, ends what is left on every node, and writes the verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from trackside_agent import processes, records

POLL_SECONDS = 0.2
NODE_TIMEOUT_SECONDS = 30


def node_command(request: dict[str, Any], node: str, grace: float) -> list[str]:
    """Return the command that ends the run on `node` and prints its rank records."""
    return [
        "ssh",
        "-o",
        "BatchMode=yes",
        "-o",
        "ConnectTimeout=10",
        node,
        "/usr/bin/python3",
        request["agent"],
        "finish",
        request["run_dir"],
        "--grace",
        str(grace),
    ]


def verdict(request: dict[str, Any], launcher_status: int, finished: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Return the final state and its reason; success needs the launcher's and every rank's own zero."""
    ranks = {r["rank"]: r for answer in finished.values() for r in answer.get("ranks", [])}
    silent = [node for node, answer in finished.items() if "error" in answer]
    if silent:
        return "failed", f"{silent[0]} did not answer at the end of the run: {finished[silent[0]]['error']}"
    left = [node for node, answer in finished.items() if not answer["clean"]]
    if left:
        return "failed", f"processes of the run are left on {', '.join(left)}"
    for rank in range(request["world_size"]):
        if rank not in ranks:
            return "failed", f"rank {rank} never started (launcher's exit status {launcher_status})"
    failed = [r for r in ranks.values() if r.get("returncode") != 0]
    if failed:
        first = min(failed, key=lambda r: float(r.get("ended", time.time())))
        return "failed", f"rank {first['rank']} on {first['host']} {_how(first.get('returncode'))}"
    if launcher_status != 0:
        return "failed", f"every rank ended with 0, but the launcher's exit status is {launcher_status}"
    return "succeeded", "every rank ended with 0"


def _how(status: int | None) -> str:
    if status is None:
        return "ended without a word: it was killed with the node's agent, or by the kernel"
    if status < 0:
        names = {number.value: number.name for number in signal.Signals}  # not every real-time signal has one
        return f"was killed by {names.get(-status, f'signal {-status}')}"
    return f"ended with exit status {status}"


def finish_node(request: dict[str, Any], node: str, grace: float) -> dict[str, Any]:
    """End the run on `node` and return its records, or an `error` in ssh's own words."""
    try:
        answer = subprocess.run(
            node_command(request, node, grace),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=grace + NODE_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {grace + NODE_TIMEOUT_SECONDS:.0f} s"}
    if answer.returncode != 0:
        words = answer.stderr.strip() or f"exit status {answer.returncode}"
        return {"error": words.splitlines()[-1]}
    document: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return document


def finish_all(request: dict[str, Any], grace: float) -> dict[str, dict[str, Any]]:
    """End the run on all its nodes at once."""
    names = [node["name"] for node in request["nodes"]]
    with ThreadPoolExecutor(max_workers=min(16, len(names))) as pool:
        answers = pool.map(lambda name: finish_node(request, name, grace), names)
        return dict(zip(names, answers))


def main(run_dir: Path) -> int:
    """Supervise the run from launch to verdict; return 0 when it succeeded."""
    request = records.read_request(run_dir)
    stop_file = run_dir / "stop.json"

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        records.write_json(stop_file, {"grace": 5})

    signal.signal(signal.SIGTERM, on_signal)
    environment = {**os.environ, processes.RUN_VARIABLE + "_LAUNCHER": request["id"]}
    with (run_dir / "output.log").open("ab") as output:
        launcher = subprocess.Popen(
            ["bash", str(run_dir / "launch.sh")],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    records.set_state(run_dir, "running", pid=os.getpid())
    stopped = False
    while launcher.poll() is None:
        if stop_file.exists():
            stopped = True
            finish_all(request, float(records.read_json(stop_file).get("grace", 5)))
            # DeepSpeed's launcher answers any other signal with a pkill over all nodes.
            _kill_group(launcher)
            break
        time.sleep(POLL_SECONDS)
    status = launcher.wait()
    finished = finish_all(request, grace=0)
    state, reason = verdict(request, status, finished)
    if stopped and state != "succeeded":
        state, reason = "stopped", "stopped on request"
    ranks = sorted((r for a in finished.values() for r in a.get("ranks", [])), key=lambda r: int(r["rank"]))
    records.set_state(run_dir, state, reason=reason, launcher_returncode=status, ranks=ranks)
    return 0 if state == "succeeded" else 1


def _kill_group(launcher: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(launcher.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
