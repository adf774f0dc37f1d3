"""Progress that a person can read: one line per node and step; the wall of text with -v."""

from __future__ import annotations

DOCUMENTATION = r"""
name: trackside
type: stdout
short_description: One line per node and step
description:
  - Shows each step (a role) with one line per node, its outcome and its time; everything with C(-v).
  - Says what a failure means and what to do about it.
extends_documentation_fragment:
  - default_callback
options:
  summary_path:
    description: File that a JSON summary of the play is written to.
    type: path
    env:
      - name: TRACKSIDE_SUMMARY
author: Trackside
"""

import json
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from ansible.plugins.callback.default import CallbackModule as Default

NODE_UNREADY = 3
COLORS = {"ok": "green", "changed": "yellow", "would change": "yellow", "failed": "red", "unreachable": "red"}
ORDER = ["ok", "changed", "failed", "unreachable"]


# (pattern in the words of ssh, sudo, Python or Ansible, what it means, what to do); the first match counts.
MEANINGS = [
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key verification failed|No .* host key is known",
        "its host key is not the pinned one",
        "if the node is new or was reinstalled: `trackside init --repin NODE`; if not, somebody may sit between",
    ),
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution",
        "its name does not resolve on the controller",
        "correct the name, or give its address as ansible_host in the inventory",
    ),
    (
        r"Permission denied(?: \(|, please)|Too many authentication failures|No more authentication methods",
        "it refuses the key (or the user does not exist there)",
        "check ansible_user and the key, or install the key by password: `trackside init NODE --ask-pass`",
    ),
    (
        r"(?:Connection|Operation) timed out|No route to host|Network is unreachable|Host is down",
        "it does not answer",
        "is it switched on, is the address right, does a firewall let ssh through?",
    ),
    (
        r"Connection refused|Connection closed|Connection reset|kex_exchange_identification",
        "nothing speaks ssh there",
        "is sshd running on it, and is ansible_port right?",
    ),
    (
        r"interpreter.*(?:not found|No such file)|[Nn]o python interpreters? found|python\S*: (?:command )?not found"
        r"|The module interpreter",
        "it has no Python",
        "install it there: `apt-get install python3`",
    ),
    (
        r"[Mm]issing sudo password|a password is required|[Ii]ncorrect sudo password|is not in the sudoers file"
        r"|not allowed to execute|sudo: (?:command )?not found|sudo: No such file|doas: |[Pp]rivilege output closed"
        r"|[Mm]issing become password|become (?:plugin )?.*failed",
        "the login user may not become root there",
        "give it sudo without a password, or pass --ask-become-pass",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "its disk is full",
        "free some space, or set trackside_prefix to a larger disk",
    ),
]


# What Ansible puts before the words of a filter, or of a module.
PREAMBLE = re.compile(
    r"^(?:Task failed: )?(?:Finalization of task args .*? The filter plugin '[\w.]+' failed: )?", re.DOTALL
)


def meaning(words: str) -> tuple[str, str] | None:
    """Return (what, fix) for the words of a failed connection or command, or None when they are not known."""
    for pattern, what, fix in MEANINGS:
        if re.search(pattern, words):
            return what, fix
    return None


def last_words(result: dict[str, Any]) -> str:
    """Return the words of a failed result: its message, what was said on stderr, and those of its failed items."""
    words = ""
    for name in ("msg", "stderr", "module_stderr", "module_stdout"):
        part = str(result.get(name) or "").strip()
        words += f"\n{part}" if part not in words else ""  # apt's message repeats its stderr
    for item in result.get("results") or []:
        if isinstance(item, dict) and item.get("failed"):
            words += f"\n{item.get('_ansible_item_label', item.get('item'))}: {last_words(item)}"
    return words.strip()


class Step:
    """What happened on each node since a role began."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcome: dict[str, str] = {}
        self.ended: dict[str, float] = {}
        self.changes: dict[str, list[str]] = defaultdict(list)
        self.began = time.monotonic()

    def note(self, node: str, outcome: str, task: str) -> None:
        """Keep the worst outcome of a node."""
        self.outcome[node] = max(self.outcome.get(node, "ok"), outcome, key=ORDER.index)
        self.ended[node] = time.monotonic()
        if outcome == "changed":
            self.changes[node].append(task)


class CallbackModule(Default):
    """The callback."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "trackside"

    def __init__(self) -> None:
        super().__init__()
        self._step = Step("")
        self._check = False
        self._problems: list[dict[str, Any]] = []
        self._notes: list[Any] = []
        self._began = time.monotonic()

    @property
    def _wall(self) -> bool:
        return bool(self._display.verbosity)

    # -- what Ansible tells

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Remember whether this is a dry run."""
        self._check = bool(play.check_mode)
        if self._wall:
            super().v2_playbook_on_play_start(play)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Close the step when the task belongs to the next one."""
        if self._wall:
            super().v2_playbook_on_task_start(task, is_conditional)
            return
        name = task._role.get_name() if task._role else ""
        if name and name != self._step.name:
            self._close()
            self._step = Step(name)
            self._display.display(f"▸ {name.replace('_', ' ')}", color="bright blue")

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Show handlers with the step that they belong to."""
        if self._wall:
            super().v2_playbook_on_handler_task_start(task)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Note an outcome; show what a debug task says."""
        if self._wall:
            super().v2_runner_on_ok(result)
        changed = bool(result.result.get("changed"))
        self._step.note(result.host.get_name(), "changed" if changed else "ok", result.task.get_name().split(" : ")[-1])
        if result.task.action == "ansible.builtin.debug":
            said = result.result.get("msg", "")
            self._notes.append(said)
            if not self._wall and isinstance(said, str):  # anything else is for machines
                self._close()
                self._display.display(said)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Say what failed, where, and what to do."""
        if self._wall:
            super().v2_runner_on_failed(result, ignore_errors)
        if not ignore_errors:
            self._fail(result, "failed", NODE_UNREADY)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Say what ssh said, in words."""
        if self._wall:
            super().v2_runner_on_unreachable(result)
        self._fail(result, "unreachable", NODE_UNREADY)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Zero hosts are no success."""
        what = "no host matches: the group of this play is empty, or --limit leaves none"
        self._problems.append({"node": "", "step": "inventory", "what": what, "fix": "", "exit_code": 2})
        self._display.display(what, color="red")

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Be silent about starts."""
        if self._wall:
            super().v2_runner_on_start(host, task)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Be silent about what was not needed."""
        if self._wall:
            super().v2_runner_on_skipped(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Be silent about items."""
        if self._wall:
            super().v2_runner_item_on_ok(result)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Be silent: the task itself fails next."""
        if self._wall:
            super().v2_runner_item_on_failed(result)

    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Be silent about items."""
        if self._wall:
            super().v2_runner_item_on_skipped(result)

    def v2_runner_retry(self, result: Any) -> None:
        """Be silent about retries."""
        if self._wall:
            super().v2_runner_retry(result)

    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Be silent about includes."""
        if self._wall:
            super().v2_playbook_on_include(included_file)

    def v2_on_file_diff(self, result: Any) -> None:
        """Show differences where they are asked for."""
        super().v2_on_file_diff(result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Close the last step, count, and write the summary."""
        self._close()
        if self._wall:
            super().v2_playbook_on_stats(stats)
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        if not self._wall:
            seconds = time.monotonic() - self._began
            counted = [h for h in hosts if h != "localhost"] or list(hosts)
            parts = [f"{h} changed={hosts[h]['changed']}" for h in counted]
            self._display.display(f"{', '.join(parts) or 'no node'}  in {seconds:.1f} s")
        target = self.get_option("summary_path")
        if target:
            document = {"hosts": hosts, "problems": self._problems, "notes": self._notes}
            Path(target).write_text(json.dumps(document, default=str))

    # -- what a person sees

    def _close(self) -> None:
        """Print the step's lines, one per node."""
        step = self._step
        width = max((len(node) for node in step.outcome), default=0)
        if not self._wall and step.name:
            for node, outcome in step.outcome.items():
                word = "would change" if outcome == "changed" and self._check else outcome
                seconds = step.ended[node] - step.began
                line = f"    {node:<{width}}  {word:<12}  {seconds:6.1f} s"
                if word == "would change":
                    line += "  " + "; ".join(dict.fromkeys(step.changes[node]))
                self._display.display(line.rstrip(), color=COLORS[word])
        began = step.began
        self._step = Step(step.name)
        self._step.began = began if not step.outcome else time.monotonic()

    def _fail(self, result: Any, outcome: str, default_code: int) -> None:
        node = result.host.get_name()
        task = result.task
        name = task.get_name().split(" : ")[-1]
        words = last_words(result.result)
        known = meaning(words) if outcome == "unreachable" or "module_stderr" in result.result else meaning(words[:400])
        said_by_us = outcome == "failed" and task.action in ("ansible.builtin.assert", "ansible.builtin.fail")
        if known and not said_by_us:
            what, fix = f"{known[0]} ({words.splitlines()[-1][:200]})", known[1]
        else:
            what, _, fix = PREAMBLE.sub("", words).partition(" FIX: ")
        code = (
            default_code if outcome == "unreachable" else int(task.get_vars().get("trackside_exit_code", default_code))
        )
        problem = {"node": node, "step": name, "what": what, "fix": fix, "exit_code": code}
        self._step.note(node, outcome, name)
        if problem in self._problems:
            return
        self._problems.append(problem)
        if not self._wall:
            where = "" if node == "localhost" else f"{node}: "
            self._display.display(f"  {where}{what}", color="red")
            if fix:
                self._display.display(f"    fix: {fix}")
