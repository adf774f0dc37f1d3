"""The only module that knows ansible-runner."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import ansible_runner

from trackside import content
from trackside.errors import ExitCode
from trackside.request import Request, options


@dataclass(frozen=True)
class Outcome:
    """How a playbook ended: the exit code, counts by host, problems, and what its tasks said."""

    exit_code: int
    hosts: dict[str, Any]
    problems: list[dict[str, Any]]
    notes: list[Any]


def environment(summary: Path, *, colors: bool) -> dict[str, str]:
    """Return the variables that ansible-runner adds to the process's own; it would turn host-key checking off."""
    # Ansible writes to ansible-runner's terminal: whether a person sees colors is for us to say.
    return ({} if colors else {"ANSIBLE_NOCOLOR": "1"}) | {
        "ANSIBLE_CONFIG": str(content.root() / "ansible.cfg"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        # ansible-runner sets the first for its own callback, and the configuration's paths are lost with it.
        "ANSIBLE_CALLBACK_PLUGINS": str(content.root() / "plugins" / "callback"),
        "ANSIBLE_STDOUT_CALLBACK": "trackside",
        "TRACKSIDE_SUMMARY": str(summary),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PWD": str(Path.cwd()),
        "COLUMNS": os.environ.get("COLUMNS", "200"),
    }


def exit_code(status: str, summary: dict[str, Any]) -> int:
    """Return the verb's exit code: the first problem's own, or what the end of the playbook means."""
    if status == "canceled":
        return int(ExitCode.INTERRUPTED)
    problems = summary.get("problems", [])
    if problems:
        return int(problems[0]["exit_code"])
    if status == "successful" and summary:
        return int(ExitCode.DONE)
    return int(ExitCode.NODE_UNREADY if summary else ExitCode.INPUT_WRONG)


def run(request: Request, show: TextIO, become_password: str = "") -> Outcome:
    """Run the request's playbook, copy its output to `show` as it comes, and say how it ended."""
    with tempfile.TemporaryDirectory(prefix="ts-") as folder, _signals_restored():
        summary_path = Path(folder) / "summary.json"

        def on_event(event: dict[str, Any]) -> bool:
            text = event.get("stdout", "")
            if text:
                show.write(text + "\n")
                show.flush()
            return True  # a false answer would make ansible-runner drop the event, and the stats with it

        done = ansible_runner.run(
            private_data_dir=folder,
            project_dir=str(Path.cwd()),
            playbook=str(content.playbook(request.verb)),
            inventory=str(request.inventory),
            extravars=request.variables or None,
            cmdline=" ".join(options(request)) or None,
            envvars=environment(summary_path, colors=show.isatty() and "NO_COLOR" not in os.environ),
            passwords={r"BECOME password.*:\s*?$": become_password} if request.ask_become_pass else None,
            event_handler=on_event,
            quiet=True,
        )
        summary = json.loads(summary_path.read_text()) if summary_path.exists() else {}
    return Outcome(
        exit_code(done.status, summary), summary.get("hosts", {}), summary.get("problems", []), summary.get("notes", [])
    )


@contextmanager
def _signals_restored() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
