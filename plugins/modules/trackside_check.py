#!/usr/bin/python
"""Measure on one node what check compares across all."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_check
short_description: Measure on one node what check compares across all
description:
  - Reads versions, the environment's digest, DeepSpeed's own report and the limits as non-interactive processes see
    them, and tries the mesh. Changes nothing.
options:
  prefix:
    description: Folder of everything that Trackside keeps on the node.
    type: path
    required: true
  user:
    description: The training user.
    type: str
    required: true
  node:
    description: This node's name.
    type: str
    required: true
  reach:
    description: Names of the nodes that this one has to reach over ssh.
    type: list
    elements: str
    default: []
author: Trackside
"""
EXAMPLES = r"""
- name: Look at the node
  trackside_check:
    prefix: /opt/trackside
    user: trackside
    node: node1
    reach: [node1, node2]
"""
RETURN = r"""
versions:
  description: Version of each part.
  returned: success
  type: dict
ops:
  description: Whether each of DeepSpeed's ops is installed and compatible, as C(ds_report) says.
  returned: success
  type: dict
mesh:
  description: For each reached node an empty string, or ssh's own words.
  returned: success
  type: dict
"""

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_trees import quick_digest
from ansible.module_utils.trackside_users import run_as, user_entry

VERSIONS = """
import importlib.metadata as m, json, platform
names = ["torch", "deepspeed", "numpy"]
print(json.dumps({"python": platform.python_version(), **{n: m.version(n) for n in names}}))
"""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
AT_A_TIME = 8


def report_ops(text):
    """Return, from ds_report's text, {op: "installed" | "compatible" | "incompatible"}."""
    found = {}
    for name, installed, compatible in re.findall(
        r"^(\w+) \.+ *\[(YES|NO)\] \.+ *\[(OKAY|NO)\]", COLOR.sub("", text), re.MULTILINE
    ):
        found[name] = "installed" if installed == "YES" else "compatible" if compatible == "OKAY" else "incompatible"
    return found


def package_versions(module):
    _status, text, _words = module.run_command(
        ["dpkg-query", "--show", "--showformat", "${Package} ${Version}\n", "openmpi-bin", "pdsh"]
    )
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def environment(prefix):
    """Return (digest at installation, whether the files are unchanged since)."""
    path = os.path.join(prefix, "env")
    try:
        with open(os.path.join(path, ".trackside.json")) as stream:
            stamp = json.load(stream)
    except FileNotFoundError:
        return "", False
    return stamp["digest"], stamp["quick"] == quick_digest(os.path.join(path, "lib"))


def reach(module, names):
    """Return ssh's words by node: empty where the node is reached and says nothing of its own."""

    def one(name):
        command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", name, "true"]
        status, text, words = run_as(module, module.params["user"], command, check=False, timeout=60)
        if status != 0:
            return (words.strip().splitlines() or ["exit status %d" % status])[-1]
        if text.strip():
            return "its shell prints %r at a login that is not interactive" % text.strip()[:80]
        return ""

    with ThreadPoolExecutor(max_workers=AT_A_TIME) as pool:
        return dict(zip(names, pool.map(one, names)))


def main():
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "reach": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    options = module.params
    user_entry(module, options["user"])
    python = os.path.join(options["prefix"], "env", "bin", "python")
    if not os.path.exists(python):
        module.fail_json(msg="%s is missing: run `trackside setup` (playbooks/setup.yml)" % python)
    _status, versions, _words = run_as(module, options["user"], [python, "-c", VERSIONS])
    with open(os.path.join(options["prefix"], "etc", ".deepspeed_env")) as stream:
        variables = dict(line.strip().split("=", 1) for line in stream if "=" in line)
    variables["PATH"] = os.path.dirname(python) + ":/usr/local/bin:/usr/bin:/bin"
    _status, report, _words = run_as(
        module, options["user"], [python, "-m", "deepspeed.env_report"], environment=variables, check=False
    )
    digest, unchanged = environment(options["prefix"])
    module.exit_json(
        changed=False,
        versions={**json.loads(versions), **package_versions(module)},
        environment=digest,
        unchanged=unchanged,
        ops=report_ops(report),
        mesh=reach(module, options["reach"]),
    )


if __name__ == "__main__":
    main()
