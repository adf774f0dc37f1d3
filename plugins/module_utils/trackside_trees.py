"""Digests of folders: what two nodes must have in common, and what changed."""

from __future__ import absolute_import, division, print_function

import hashlib
import os
import stat

# What Python writes by itself, and what differs by the time of the installation only.
SKIPPED_FOLDERS = frozenset({"__pycache__"})
SKIPPED_FILES = frozenset({"RECORD", "direct_url.json", "uv_cache.json"})


def walk(root):
    """Yield (relative path, lstat) of every file and link below `root`, in a fixed order."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        linked = [f for f in folders if os.path.islink(os.path.join(folder, f))]
        for name in sorted(set(files + linked) - SKIPPED_FILES):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, root), os.lstat(path)


def quick_digest(root):
    """Return a digest over paths, sizes and times: finds a local change without reading the files."""
    digest = hashlib.sha256()
    for name, status in walk(root):
        digest.update(("%s\0%d\0%d\n" % (name, status.st_size, int(status.st_mtime))).encode())
    return digest.hexdigest()


def full_digest(root):
    """Return a digest over paths and contents: equal on two nodes when they hold the same files."""
    digest = hashlib.sha256()
    for name, status in walk(root):
        path = os.path.join(root, name)
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(path).encode()
        else:
            content = file_digest(path).encode()
        digest.update(("%s\0%s\n" % (name, content.hex())).encode())
    return digest.hexdigest()


def file_digest(path):
    """Return the sha256 of one file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
