#!/usr/bin/python
"""The node's half of the action of the same name."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_collect
short_description: Fetch a run's logs and results to the controller
description:
  - Brings the ranks' logs of a node into one folder on the controller, from the head also what describes the run
    and the small files of its output.
options:
  run_dir:
    description: The run's folder on the node.
    type: path
    required: true
  dest:
    description: Folder on the controller (used by the action plugin).
    type: path
  head:
    description: Whether this node is the head.
    type: bool
    required: true
author: Trackside
"""
EXAMPLES = r"""
- name: Collect
  trackside_collect:
    run_dir: /opt/trackside/runs/first
    dest: runs/first
    head: true
"""
RETURN = r"""
result:
  description: The program's own C(result.json).
  returned: when there is one
  type: dict
state:
  description: The run's state, with its reason.
  returned: on the head
  type: dict
"""

import base64
import io
import json
import os
import tarfile

from ansible.module_utils.basic import AnsibleModule

LARGEST_LOG = 8 * 1024 * 1024  # of a larger one the end is fetched; the whole stays on the node
LARGEST_RESULT = 1024 * 1024


def chosen(run_dir, head):
    """Yield the relative paths of what is fetched; request.json may carry secrets and stays."""
    folders = ["logs", "ranks", "output"] if head else ["logs", "ranks"]
    files = ["launch.sh", "hostfile", "ds_config.json", "state.json", "output.log"] if head else []
    for name in files:
        if os.path.isfile(os.path.join(run_dir, name)):
            yield name
    for folder in folders:
        path = os.path.join(run_dir, folder)
        for name in sorted(os.listdir(path)) if os.path.isdir(path) else []:
            inner = os.path.join(path, name)
            if os.path.isfile(inner) and (folder != "output" or os.path.getsize(inner) <= LARGEST_RESULT):
                yield os.path.join(folder, name)


def pack(run_dir, names):
    """Return a compressed archive of the files, in base64."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            with open(os.path.join(run_dir, name), "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - LARGEST_LOG))
                content = stream.read()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return base64.b64encode(buffer.getvalue()).decode()


def read_json(path):
    try:
        with open(path) as stream:
            return json.load(stream)
    except (FileNotFoundError, ValueError):
        return {}


def main():
    module = AnsibleModule(
        argument_spec={
            "run_dir": {"type": "path", "required": True},
            "dest": {"type": "path"},
            "head": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    run_dir = module.params["run_dir"]
    names = list(chosen(run_dir, module.params["head"])) if os.path.isdir(run_dir) else []
    module.exit_json(
        changed=False,
        pack=pack(run_dir, names),
        names=names,
        result=read_json(os.path.join(run_dir, "output", "result.json")) if module.params["head"] else {},
        state=read_json(os.path.join(run_dir, "state.json")) if module.params["head"] else {},
    )


if __name__ == "__main__":
    main()
