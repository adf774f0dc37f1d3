#!/usr/bin/python
"""The node's half of the action of the same name."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_folder
short_description: Send a folder of the controller to a node when the node's differs
description:
  - Makes the folder I(dest) on the node equal to the folder I(src) of the controller, in one step.
  - The digest of what lies there is kept beside it, in a file named after the folder.
options:
  src:
    description: Folder on the controller (read by the action plugin).
    type: path
  only:
    description: Relative paths to send, all when left out (read by the action plugin).
    type: list
    elements: str
  dest:
    description: Folder on the node.
    type: path
    required: true
  owner:
    description: User and group that own the files.
    type: str
    required: true
  digest:
    description: Digest of the pack (given by the action plugin).
    type: str
  pack:
    description: The pack, already on the node (given by the action plugin).
    type: path
author: Trackside
"""
EXAMPLES = r"""
- name: Send the code
  trackside_folder:
    src: "{{ playbook_dir }}/../train"
    dest: /opt/trackside/runs/first/code
    owner: trackside
"""
RETURN = r"""
digest:
  description: Digest of the folder's content.
  returned: success
  type: str
"""

import os
import pwd
import shutil
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_users import make_folders


def unpack(pack, dest, entry):
    """Unpack beside the folder, then swap, so that the folder is the old one or the new one."""
    fresh, old = dest + ".new", dest + ".old"
    for left in (fresh, old):
        shutil.rmtree(left, ignore_errors=True)
    make_folders(os.path.dirname(dest), entry.pw_uid, entry.pw_gid)
    os.mkdir(fresh)
    with tarfile.open(pack) as archive:
        for member in archive.getmembers():
            if member.name.startswith("/") or ".." in member.name.split("/"):
                raise ValueError("the pack holds the path %s" % member.name)
            archive.extract(member, fresh)
    for folder, folders, files in os.walk(fresh):
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        for name in folders + files:
            os.lchown(os.path.join(folder, name), entry.pw_uid, entry.pw_gid)
    if os.path.isdir(dest):
        os.rename(dest, old)
    os.rename(fresh, dest)
    shutil.rmtree(old, ignore_errors=True)


def main():
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path"},
            "only": {"type": "list", "elements": "str"},
            "dest": {"type": "path", "required": True},
            "owner": {"type": "str", "required": True},
            "digest": {"type": "str"},
            "pack": {"type": "path"},
        },
        supports_check_mode=True,
    )
    dest = module.params["dest"].rstrip("/")
    digest = module.params["digest"]
    mark = os.path.join(os.path.dirname(dest), ".%s.sha256" % os.path.basename(dest))
    try:
        with open(mark) as stream:
            same = stream.read().strip() == digest and os.path.isdir(dest)
    except FileNotFoundError:
        same = False
    if module.params["pack"] and not same:
        try:
            entry = pwd.getpwnam(module.params["owner"])
        except KeyError:
            module.fail_json(msg="there is no user %r on this node" % module.params["owner"])
        unpack(module.params["pack"], dest, entry)
        with open(mark, "w") as stream:
            stream.write(digest + "\n")
    module.exit_json(changed=not same, digest=digest, dest=dest)


if __name__ == "__main__":
    main()
