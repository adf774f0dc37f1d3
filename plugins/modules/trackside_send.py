#!/usr/bin/python
"""The node's half of the action of the same name."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_send
short_description: Send a large file of the controller to a node in pieces
description:
  - Sends only what an interrupted transfer has not brought yet, and checks the sha256 of the whole.
options:
  src:
    description: File on the controller (read by the action plugin).
    type: path
  dest:
    description: The file on the node.
    type: path
    required: true
  owner:
    description: User and group that own it.
    type: str
    required: true
  size:
    description: Its size in bytes (given by the action plugin).
    type: int
  sha256:
    description: Its sha256.
    type: str
    required: true
  piece:
    description: Its next bytes, already on the node (given by the action plugin).
    type: path
  offset:
    description: Where in the file they belong (given by the action plugin).
    type: int
author: Trackside
"""
EXAMPLES = r"""
- name: Send the packages
  trackside_send:
    src: ~/.cache/trackside/packages/cpu.tar
    dest: /opt/trackside/packages/cpu.tar
    sha256: 9e491abd0827ea5c389dd702e15e11e13d83d904bac4a20d6c2a4cb37207a9af
    owner: trackside
"""
RETURN = r"""
have:
  description: Bytes of the file that the node has.
  returned: success
  type: int
sent:
  description: Bytes that this task sent.
  returned: success
  type: int
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_trees import file_digest
from ansible.module_utils.trackside_users import make_folders, user_entry

BLOCK = 1 << 20


def bytes_there(options):
    """Return how many bytes of the file the node has; what cannot be its beginning is removed."""
    dest, part = options["dest"], options["dest"] + ".part"
    if os.path.exists(dest) and os.path.getsize(dest) == options["size"] and file_digest(dest) == options["sha256"]:
        return options["size"]
    if os.path.exists(part):
        if os.path.getsize(part) <= options["size"]:
            return os.path.getsize(part)
        os.unlink(part)
    return 0


def append(module, options, entry):
    """Add the piece, and give the file its name when it is whole."""
    part = options["dest"] + ".part"
    make_folders(os.path.dirname(part), entry.pw_uid, entry.pw_gid)
    with open(part, "ab") as stream, open(options["piece"], "rb") as piece:
        if stream.tell() != options["offset"]:
            module.fail_json(msg="%s has changed while it was being sent: run setup again" % part)
        shutil.copyfileobj(piece, stream, BLOCK)
        have = stream.tell()
    os.chown(part, entry.pw_uid, entry.pw_gid)
    if have == options["size"]:
        if file_digest(part) != options["sha256"]:
            os.unlink(part)
            module.fail_json(
                msg="%s arrived with another sha256 than it was sent with: run setup again" % options["dest"]
            )
        os.replace(part, options["dest"])
    return have


def main():
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path"},
            "dest": {"type": "path", "required": True},
            "owner": {"type": "str", "required": True},
            "size": {"type": "int"},
            "sha256": {"type": "str", "required": True},
            "piece": {"type": "path"},
            "offset": {"type": "int"},
        },
        supports_check_mode=True,
    )
    options = module.params
    if options["piece"] and not module.check_mode:
        module.exit_json(changed=True, have=append(module, options, user_entry(module, options["owner"])))
    have = bytes_there(options)
    module.exit_json(changed=have < options["size"], have=have)


if __name__ == "__main__":
    main()
