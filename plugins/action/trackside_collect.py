"""Fetch a run's logs and results into one folder on the controller."""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Asks the node for a pack and unpacks it; each node brings its own ranks' files."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        answer = self._execute_module("trackside_collect", dict(self._task.args), task_vars=task_vars)
        pack = answer.pop("pack", "")
        if not answer.get("failed") and pack and not self._task.check_mode:
            dest = Path(self._task.args["dest"])
            dest.mkdir(parents=True, exist_ok=True)
            with tarfile.open(fileobj=io.BytesIO(base64.b64decode(pack))) as archive:
                archive.extractall(dest, filter="data")
        return {**result, **answer}
