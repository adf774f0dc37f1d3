"""Folders in which something is made before it is put in its place."""

from __future__ import absolute_import, division, print_function

import fcntl
import glob
import os
import shutil
import tempfile
from contextlib import contextmanager


@contextmanager
def workspace(parent, prefix):
    """Yield a new folder below `parent`, for everybody to read; it is removed in the end.

    What an interrupted predecessor left is removed first. One at a time: a second one waits for the first.
    """
    lock = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in glob.glob(os.path.join(glob.escape(parent), prefix + "*")):
            shutil.rmtree(left)
        folder = tempfile.mkdtemp(dir=parent, prefix=prefix)
        try:
            os.chmod(folder, 0o755)
            yield folder
        finally:
            shutil.rmtree(folder)
    finally:
        os.close(lock)
