"""The processes of one run on one node: entering its cgroup, and ending exactly these."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

RUN_VARIABLE = "TRACKSIDE_RUN_ID"


def slice_name(run_id: str) -> str:
    """Return the name of the run's slice; systemd reads `-` in it as a level of the tree, and no id holds a `.`."""
    return f"trackside-{run_id.replace('-', '.')}.slice"


def user_manager() -> dict[str, str] | None:
    """Return the environment that reaches this user's systemd, or None where there is none."""
    runtime = f"/run/user/{os.getuid()}"
    if not shutil.which("systemd-run") or not Path(runtime, "systemd", "private").exists():
        return None
    return {**os.environ, "XDG_RUNTIME_DIR": runtime}


def scope_command(run_id: str, rank: int, command: list[str]) -> list[str]:
    """Return the command that runs `command` as one scope in the run's slice (systemd-run(1))."""
    return [
        "systemd-run",
        "--user",
        "--scope",
        "--quiet",
        "--collect",
        f"--slice={slice_name(run_id)}",
        f"--unit=trackside-{run_id}-rank{rank}-{os.getpid()}",
        "--",
        *command,
    ]


def pids_of(run_id: str) -> list[int]:
    """Return the processes of this user that carry the run's id in their environment or its slice."""
    mark = f"{RUN_VARIABLE}={run_id}".encode()
    group = slice_name(run_id).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            in_slice = group in (entry / "cgroup").read_bytes()
            if (in_slice or mark in (entry / "environ").read_bytes().split(b"\0")) and not _is_zombie(entry):
                found.append(int(entry.name))
        except OSError:  # it ended while we looked
            continue
    return found


def _is_zombie(entry: Path) -> bool:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"


def send(run_id: str, number: signal.Signals) -> None:
    """Signal every process of the run on this node."""
    manager = user_manager()
    if manager:
        subprocess.run(
            ["systemctl", "--user", "kill", f"--signal={number.name}", slice_name(run_id)],
            env=manager,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the slice is gone once its last process is
            check=False,
        )
    else:
        for pid in pids_of(run_id):
            _kill(pid, number)


def end(run_id: str, grace: float) -> bool:
    """End the run's processes on this node: politely, after `grace` seconds by force; say if none is left."""
    if grace > 0 and pids_of(run_id):
        send(run_id, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while pids_of(run_id) and time.monotonic() < deadline:
            time.sleep(0.1)
    for _ in range(50):
        left = pids_of(run_id)
        if not left:
            return True
        send(run_id, signal.SIGKILL)
        for pid in left:  # what left its cgroup is still known by its environment
            _kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return False


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
