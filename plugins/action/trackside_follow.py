"""Show a run's output as it comes, until the run has ended; the task fails when the run did."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

POLL_SECONDS = 1.0
LAST_LINES = 40


class ActionModule(ActionBase):
    """Asks the head's agent for new lines once a second."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        if self._task.check_mode:
            return {**result, "changed": False, "skipped": True}
        arguments = {**self._task.args, "state": "read"}
        display = Display()
        offset, last = 0, []
        while True:
            answer = self._execute_module("trackside_run", {**arguments, "offset": offset}, task_vars=task_vars)
            if answer.get("failed") or answer.get("unreachable"):
                return {**result, **answer}
            run = answer["run"]
            offset = run["offset"]
            lines = run["text"].splitlines()
            last = [*last, *lines][-LAST_LINES:]
            for line in lines:
                display.display(line)
            if run["more"]:
                continue
            if run["state"] not in ("staged", "running"):
                break
            time.sleep(POLL_SECONDS)
        verdict = {"state": run["state"], "reason": run.get("reason", ""), "ranks": run.get("ranks", [])}
        result.update(changed=True, run=verdict, stdout="\n".join(last))
        if run["state"] != "succeeded":
            result.update(failed=True, msg=f"the training {run['state']}: {verdict['reason']}")
        return result
