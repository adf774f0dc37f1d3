#!/usr/bin/python
"""Look whether a node is ready for a run, in a second, before anything starts."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_preflight
short_description: Look whether a node is ready for a run
description:
  - Fails with one sentence per thing that is missing. Changes nothing.
options:
  prefix:
    description: Folder of everything that Trackside keeps on the node.
    type: path
    required: true
  user:
    description: The training user.
    type: str
    required: true
  cluster:
    description: The cluster as the playbook knows it.
    type: dict
    required: true
  node:
    description: This node's name in the inventory.
    type: str
    required: true
  port:
    description: TCP port on the head at which the ranks meet.
    type: int
    required: true
  run_dir:
    description: Folder that the run is to have.
    type: path
    required: true
  data:
    description: Folder of data that has to be present. Empty means none.
    type: str
    default: ""
author: Trackside
"""
EXAMPLES = r"""
- name: Look whether the node is ready
  trackside_preflight:
    prefix: /opt/trackside
    user: trackside
    cluster: "{{ trackside_cluster }}"
    node: "{{ inventory_hostname }}"
    port: 29500
    run_dir: /opt/trackside/runs/first
"""
RETURN = r"""
environment:
  description: Real path of the environment in use, so that a later switch cannot mix versions.
  returned: success
  type: str
deepspeed_env:
  description: Variables that setup left for every rank.
  returned: success
  type: dict
data:
  description: Digest of the data folder's content.
  returned: success
  type: str
"""

import json
import os
import pwd
import shutil
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_trees import full_digest

LEAST_FREE_BYTES = 256 * 1024 * 1024
SETUP = "run `trackside setup` (playbooks/setup.yml)"


def port_problem(address, port):
    """Return a sentence when nothing can listen on the port of this address, else None."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            return "port %d of %s is not free (%s): another run? Stop it, or set trackside_master_port" % (
                port,
                address,
                error.strerror,
            )
    return None


def read_environment(path):
    """Return the variables of a `.deepspeed_env`."""
    with open(path) as stream:
        return dict(line.rstrip("\n").split("=", 1) for line in stream if "=" in line)


def prepared_problems(options):
    """Return what setup has not done, or has done for another cluster."""
    prefix, cluster = options["prefix"], options["cluster"]
    try:
        pwd.getpwnam(options["user"])
        with open(os.path.join(prefix, "etc", "setup.json")) as stream:
            stamp = json.load(stream)
    except (KeyError, FileNotFoundError):
        return ["it is not prepared: " + SETUP]
    wanted = (
        os.path.join(prefix, "env", "bin", "python"),
        os.path.join(prefix, "env", ".trackside.json"),
        os.path.join(prefix, "agent", "agent.py"),
    )
    problems = ["%s is missing: %s" % (path, SETUP) for path in wanted if not os.path.exists(path)]
    then = stamp["cluster"]
    if then["order"] != cluster["order"] or then["fabric"] != cluster["fabric"] or then["slots"] != cluster["slots"]:
        problems.append(
            "it was prepared for %s, the inventory now says %s (or other slots or addresses): %s"
            % (", ".join(then["order"]), ", ".join(cluster["order"]), SETUP)
        )
    return problems


def main():
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "cluster": {"type": "dict", "required": True},
            "node": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "run_dir": {"type": "path", "required": True},
            "data": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    options = module.params
    problems = prepared_problems(options)
    if problems:
        module.fail_json(msg="; ".join(problems))
    prefix, cluster = options["prefix"], options["cluster"]
    if os.path.exists(options["run_dir"]):
        problems.append("there is a run %s already: choose another name" % os.path.basename(options["run_dir"]))
    free = shutil.disk_usage(prefix).free
    if free < LEAST_FREE_BYTES:
        problems.append("its disk has %d MB free below %s: free some space" % (free // 1000000, prefix))
    if options["node"] == cluster["head"]:
        problem = port_problem(cluster["fabric"][cluster["head"]]["address"], options["port"])
        problems += [problem] if problem else []
    if options["data"] and not os.path.isdir(options["data"]):
        problems.append("there is no data folder %s: copy it there, or give one of the controller" % options["data"])
    if problems:
        module.fail_json(msg="; ".join(problems))
    module.exit_json(
        changed=False,
        environment=os.path.realpath(os.path.join(prefix, "env")),
        deepspeed_env=read_environment(os.path.join(prefix, "etc", ".deepspeed_env")),
        data=full_digest(options["data"]) if options["data"] else "",
    )


if __name__ == "__main__":
    main()
