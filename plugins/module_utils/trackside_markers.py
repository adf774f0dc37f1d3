"""Which packages of a lock a node wants: on the controller alone, where ansible-core brings what reads markers."""

from __future__ import absolute_import, division, print_function

from ansible.module_utils.trackside_lock import entries
from packaging.markers import Marker


def holds_for(python, architecture):
    """Return what says of a marker (PEP 508) whether it is true of such a node; pip would ask the controller."""
    node = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": architecture,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": python + ".0",
        "python_version": python,
        "sys_platform": "linux",
    }
    return lambda marker: Marker(marker).evaluate(node)


def narrowed(text, nodes):
    """Return the lock for the given nodes, (Python, processor) each: what none of them wants is left out.

    A marker stays only where it tells these nodes apart.
    """
    kept = []
    for name, version, marker, block in entries(text):
        truths = [not marker or holds_for(python, architecture)(marker) for python, architecture in nodes]
        if all(truths):
            kept.append("%s==%s \\\n%s" % (name, version, block.partition("\n")[2]))
        elif any(truths):
            kept.append(block)
    return "".join(kept)
