"""The files of a run's folder, read and written whole."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

FINAL_STATES = ("succeeded", "failed", "stopped", "lost")


def write_json(path: Path, document: dict[str, Any], mode: int = 0o640) -> None:
    """Write `document` so that a reader sees the old file or the new one, never half of one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    partial.chmod(mode)
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Return the document at `path`, or an empty one when there is none."""
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return document


def read_request(run_dir: Path) -> dict[str, Any]:
    """Return the run's request; raise SystemExit with a sentence when the folder holds none."""
    request = read_json(run_dir / "request.json")
    if not request:
        raise SystemExit(f"{run_dir}: no request.json, so this is not the folder of a run on this node")
    return request


def set_state(run_dir: Path, state: str, **facts: Any) -> None:
    """Move the run to `state` and remember when, in seconds since the epoch."""
    document = read_json(run_dir / "state.json")
    document.update(facts, state=state)
    document.setdefault("times", {})[state] = round(time.time(), 3)
    write_json(run_dir / "state.json", document)


def state_of(run_dir: Path) -> dict[str, Any]:
    """Return the run's state; a run whose supervisor is gone without a verdict is `lost`."""
    document = read_json(run_dir / "state.json") or {"state": "staged"}
    if document["state"] == "running" and not _is_supervisor(document.get("pid", 0), run_dir):
        again = read_json(run_dir / "state.json")  # it may have ended between the two looks
        if again.get("state") == "running":
            return {**again, "state": "lost", "reason": "the run's supervisor on the head is gone"}
        return again
    return document


def _is_supervisor(pid: int, run_dir: Path) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"supervise" in command and str(run_dir).encode() in command
