"""Reading a stack's lock: a requirements file with a version, hashes, and where needed a marker for every package."""

from __future__ import absolute_import, division, print_function

import re

ENTRY = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)\s*(?:;\s*([^\\]+?))?\s*\\?$")


def canonical(name):
    """Return a package's name as PEP 503 writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def entries(text):
    """Yield (name, version, marker, text) of each package; the marker is empty where the package is always wanted.

    Raises ValueError with the line's number for what is neither a package, nor a hash, nor a comment.
    """
    current = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        start = ENTRY.match(line)
        if start:
            if current:
                yield tuple(current)
            name, version, marker = start.groups()
            current = [canonical(name), version, marker or "", line + "\n"]
        elif current and re.match(r"^\s+--hash=sha256:[0-9a-f]{64}\s*\\?$", line):
            current[3] += line + "\n"
        else:
            raise ValueError("line %d of the lock is neither a package nor a hash: %s" % (number, line.strip()))
    if current:
        yield tuple(current)


def select(text, names=None, without=(), holds=None):
    """Return the lock's packages as a lock: those of `names`, or all, less those of `without`.

    `holds` says of a marker whether it is true of the node.
    """
    return "".join(
        block
        for name, _version, marker, block in entries(text)
        if (names is None or name in names) and name not in without and (not marker or holds is None or holds(marker))
    )


def locked_versions(text):
    """Return {name: version} of the lock; a package with several versions, by marker, has the last one."""
    return {name: version for name, version, _marker, _block in entries(text)}
