"""Reading a stack's lock."""

from __future__ import absolute_import, division, print_function


def split_lock(text, sources):
    """Return the lock's wheels and its sources as two texts.

    An entry is a line `name==version` and the indented lines after it; `sources` are the names
    that are published as source only.
    """
    wheels, source = [], []
    target = wheels
    for line in text.splitlines(True):
        if line.strip() and not line.startswith((" ", "#")):
            target = source if line.split("==")[0].strip() in sources else wheels
        target.append(line)
    return "".join(wheels), "".join(source)
