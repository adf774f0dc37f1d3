#!/usr/bin/python
"""Pass a path of the head on to the other nodes, over the mesh."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_push
short_description: Pass a path of this node on to other nodes, over the mesh
description:
  - Runs rsync as the training user to each node, several at a time; what is there already is not sent again.
options:
  path:
    description: File or folder; it gets the same absolute path on every node.
    type: path
    required: true
  nodes:
    description: Names of the nodes, as the mesh knows them.
    type: list
    elements: str
    required: true
  user:
    description: The training user.
    type: str
    required: true
  exclude:
    description: Patterns that are left out and left alone, as rsync's C(--exclude).
    type: list
    elements: str
    default: []
author: Trackside
"""
EXAMPLES = r"""
- name: Pass the packages on
  trackside_push:
    path: /opt/trackside/packages
    nodes: [node2, node3]
    user: trackside
"""
RETURN = r"""
sent:
  description: Nodes that something was sent to.
  returned: success
  type: list
  elements: str
"""

import os
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_users import run_as

AT_A_TIME = 4


def command(path, node, exclude, dry_run):
    """Return rsync's argument list; `--rsync-path` makes the parents first."""
    is_folder = os.path.isdir(path)
    argv = ["rsync", "--archive", "--delete", "--itemize-changes", "--timeout=60"]
    argv += ["--exclude=%s" % pattern for pattern in exclude]
    argv += ["--dry-run"] if dry_run else []
    argv += ["--rsh=ssh -o BatchMode=yes -o ConnectTimeout=10"]
    argv += ["--rsync-path=mkdir -p '%s' && rsync" % (path if is_folder else os.path.dirname(path))]
    return [*argv, path + "/" if is_folder else path, "%s:%s" % (node, path + "/" if is_folder else path)]


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "user": {"type": "str", "required": True},
            "exclude": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    path = module.params["path"].rstrip("/")
    nodes = module.params["nodes"]
    if module.check_mode and not os.path.exists(path):
        module.exit_json(changed=bool(nodes), sent=nodes)

    def send(node):
        argv = command(path, node, module.params["exclude"], module.check_mode)
        return run_as(module, module.params["user"], argv, check=False)

    with ThreadPoolExecutor(max_workers=AT_A_TIME) as pool:
        answers = dict(zip(nodes, pool.map(send, nodes)))
    failed = ["%s: %s" % (n, a[2].strip().splitlines()[-1]) for n, a in answers.items() if a[0] != 0]
    if failed:
        module.fail_json(msg="could not pass %s on to %s" % (path, "; ".join(failed)))
    sent = [node for node, answer in answers.items() if answer[1].strip()]
    module.exit_json(changed=bool(sent), sent=sent)


if __name__ == "__main__":
    main()
