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
    return digest_of({name: content for name, (_size, _time, content) in contents(root).items()})


def digest_of(hashes):
    """Return the digest of {path: hash of its content}."""
    digest = hashlib.sha256()
    for name in sorted(hashes):
        digest.update(("%s\0%s\n" % (name, hashes[name])).encode())
    return digest.hexdigest()


def contents(root):
    """Return {path: (size, time in whole seconds, sha256)} of every file and link below `root`."""
    found = {}
    for name, status in walk(root):
        path = os.path.join(root, name)
        link = stat.S_ISLNK(status.st_mode)
        content = hashlib.sha256(os.readlink(path).encode()).hexdigest() if link else file_digest(path)
        found[name] = (status.st_size, int(status.st_mtime), content)
    return found


def changes(root, known, deep=False):
    """Return what differs below `root` from `known`, as `contents` gave it, as `path (added, removed or changed)`.

    Sizes and times tell it without reading a file; with `deep` the contents do, whatever the times say.
    """
    if deep:
        now = {name: [content] for name, (_size, _time, content) in contents(root).items()}
        then = {name: list(entry[2:]) for name, entry in known.items()}
    else:
        now = {name: [status.st_size, int(status.st_mtime)] for name, status in walk(root)}
        then = {name: list(entry[:2]) for name, entry in known.items()}
    words = [name + " (added)" for name in now if name not in then]
    words += [name + " (removed)" for name in then if name not in now]
    return sorted(words + [name + " (changed)" for name in now if name in then and now[name] != then[name]])


def file_digest(path):
    """Return the sha256 of one file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
