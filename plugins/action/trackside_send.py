"""Send a large file to a node in pieces, going on where an interrupted transfer stopped."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

PIECE_BYTES = 64 << 20


class ActionModule(ActionBase):
    """Asks the node how much it has, then brings it piece by piece; each is kept as soon as it is there."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        source = Path(str(arguments.pop("src", ""))).expanduser()
        if not source.is_file():
            raise AnsibleActionFail(f"{source} is not a file on the controller")
        arguments["size"] = source.stat().st_size
        try:
            answer = self._execute_module("trackside_send", arguments, task_vars=task_vars)
            sent = 0
            while not (answer.get("failed") or self._task.check_mode) and answer["have"] < arguments["size"]:
                offset = answer["have"]
                piece = {"piece": self._bring(source, offset), "offset": offset}
                answer = self._execute_module("trackside_send", {**arguments, **piece}, task_vars=task_vars)
                sent += answer.get("have", offset) - offset
            return {**result, **answer, "sent": sent}
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)

    def _bring(self, source: Path, offset: int) -> str:
        """Copy the piece from `offset` on to the node and return its path there."""
        handle, local = tempfile.mkstemp(prefix="trackside-")
        try:
            with os.fdopen(handle, "wb") as piece, source.open("rb") as stream:
                stream.seek(offset)
                piece.write(stream.read(PIECE_BYTES))
            if not self._connection._shell.tmpdir:
                self._make_tmp_path()
            remote = str(
                self._transfer_file(local, self._connection._shell.join_path(self._connection._shell.tmpdir, "piece"))
            )
            self._fixup_perms2((self._connection._shell.tmpdir, remote))
            return remote
        finally:
            Path(local).unlink()
