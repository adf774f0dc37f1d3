"""Send a folder of the controller to a node when the node's differs."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

# What a checkout holds beside the code. Checkpoints and outputs are the user's to keep elsewhere.
LEFT_OUT = frozenset(
    {".git", ".venv", "venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ansible", ".cache"}
)


def _files(source: Path, only: list[str] | None) -> Iterator[tuple[str, str]]:
    for folder, folders, files in os.walk(str(source)):
        folders[:] = sorted(f for f in folders if f not in LEFT_OUT)
        for name in sorted(files):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, str(source))
            if name.endswith(".pyc") or (only and relative not in only):
                continue
            yield relative, path


def pack(source: Path, target: Path, only: list[str] | None = None) -> str:
    """Write `source`'s files to the archive `target` and return the sha256 of its content.

    Times and owners are left out, so the digest depends on names, contents and the execute bit alone.
    """
    digest = hashlib.sha256()
    with open(str(target), "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, compresslevel=1) as zipped:
        with tarfile.open(fileobj=zipped, mode="w") as archive:
            for relative, path in _files(source, only):
                entry = archive.gettarinfo(path, relative)
                if not (entry.isfile() or entry.issym()):
                    continue
                entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
                entry.mode = 0o755 if entry.mode & 0o100 else 0o644
                if entry.islnk():  # a hard link inside the folder is a file like any other
                    entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", os.path.getsize(path)
                digest.update(("%s\0%o\0%s\0" % (relative, entry.mode, entry.linkname)).encode())
                if entry.isfile():
                    with open(path, "rb") as stream:
                        inner = hashlib.sha256()
                        for block in iter(lambda: stream.read(1 << 20), b""):
                            inner.update(block)
                        digest.update(inner.digest())
                        stream.seek(0)
                        archive.addfile(entry, stream)
                else:
                    archive.addfile(entry)
    return digest.hexdigest()


class ActionModule(ActionBase):
    """Packs the folder on the controller, sends the pack only when the digests differ, unpacks it in one step."""

    TRANSFERS_FILES = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        source = Path(str(arguments.pop("src", "")))
        if not source.is_dir():
            raise AnsibleActionFail(f"{source} is not a folder on the controller")
        handle, local = tempfile.mkstemp(prefix="trackside-", suffix=".tar.gz")
        os.close(handle)
        try:
            arguments["digest"] = pack(source, Path(local), only=arguments.pop("only", None))
            asked = self._execute_module("trackside_folder", arguments, task_vars=task_vars)
            if asked.get("failed") or not asked["changed"] or self._task.check_mode:
                return {**result, **asked}
            self._make_tmp_path()
            remote = self._transfer_file(
                local, self._connection._shell.join_path(self._connection._shell.tmpdir, "pack")
            )
            self._fixup_perms2((self._connection._shell.tmpdir, remote))
            arguments["pack"] = remote
            return {**result, **self._execute_module("trackside_folder", arguments, task_vars=task_vars)}
        finally:
            Path(local).unlink()
            self._remove_tmp_path(self._connection._shell.tmpdir)
