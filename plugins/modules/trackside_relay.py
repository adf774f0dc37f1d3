#!/usr/bin/python
"""Pass a file of the head on to other nodes along a chain."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_relay
short_description: Pass a file of the head on to other nodes along a chain
description:
  - Runs on the head. Every node gets the file from its predecessor while that one still receives, over the network of
    the ranks, through a listener that takes one connection with a token drawn for it.
  - What an interrupted transfer left is gone on with; the file's sha256 is checked on every node.
options:
  path:
    description: The file, at the same path on every node.
    type: path
    required: true
  sha256:
    description: The file's sha256.
    type: str
    required: true
  nodes:
    description: The nodes that lack it, each with C(name), as the head's ssh knows it, and C(address).
    type: list
    elements: dict
    required: true
  agent:
    description: The agent's program on every node.
    type: path
    required: true
  user:
    description: The training user, whose mesh is used.
    type: str
    required: true
author: Trackside
"""
EXAMPLES = r"""
- name: Pass the packages on
  trackside_relay:
    path: /opt/trackside/packages/cpu-0123456789ab.tar
    sha256: 9e491abd0827ea5c389dd702e15e11e13d83d904bac4a20d6c2a4cb37207a9af
    nodes: [{name: node2, address: 10.0.0.12}]
    agent: /opt/trackside/agent/agent.py
    user: trackside
"""
RETURN = r"""
sent:
  description: Bytes that each node lacked.
  returned: changed
  type: dict
seconds:
  description: How long the transfer took.
  returned: changed
  type: float
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_users import run_as


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
            "agent": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    options = module.params
    if module.check_mode or not options["nodes"]:
        module.exit_json(changed=bool(options["nodes"]), sent={}, seconds=0.0)
    order = {name: options[name] for name in ("path", "sha256", "nodes", "agent")}
    command = ["/usr/bin/python3", options["agent"], "relay", "lead"]
    _status, answer, words = run_as(module, options["user"], command, check=False, text=json.dumps(order))
    try:
        result = json.loads(answer)
    except ValueError:
        result = {"error": (words.strip().splitlines() or ["the agent ended without a word"])[-1]}
    if "error" in result:
        module.fail_json(
            msg="could not pass %s on: %s. Run setup again: it goes on where this stopped."
            % (options["path"], result["error"])
        )
    module.exit_json(changed=any(result["sent"].values()), **result)


if __name__ == "__main__":
    main()
