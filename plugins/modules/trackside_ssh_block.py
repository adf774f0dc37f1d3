#!/usr/bin/python
"""Keep one block of lines in a file of a user's ~/.ssh."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_ssh_block
short_description: Keep one block of lines in a file of a user's C(~/.ssh)
description:
  - Lines outside of the block are the user's own and stay as they are.
options:
  user:
    description: The user.
    type: str
    required: true
  file:
    description: Name of the file below C(~/.ssh).
    type: str
    choices: [authorized_keys, known_hosts]
    required: true
  lines:
    description: Lines of the block.
    type: list
    elements: str
    required: true
  keep:
    description: Host names whose present lines of the block stay when I(lines) does not name them.
    type: list
    elements: str
    default: []
author: Trackside
"""
EXAMPLES = r"""
- name: Let the head in
  trackside_ssh_block:
    user: trackside
    file: authorized_keys
    lines: ['from="10.0.0.11",restrict ssh-ed25519 AAAA mesh']
"""
RETURN = r"""
lines:
  description: Lines of the block.
  returned: success
  type: list
  elements: str
"""

import os
import pwd
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_users import make_folders

BEGIN = "# BEGIN trackside mesh"
END = "# END trackside mesh"


def split(text):
    """Return (lines outside of the block, lines inside)."""
    outside, inside = [], []
    target = outside
    for line in text.splitlines():
        if line == BEGIN:
            target = inside
        elif line == END:
            target = outside
        else:
            target.append(line)
    return outside, inside


def host_of(line):
    """Return the first name of a known_hosts line, without brackets and port."""
    return line.split(",")[0].split(" ")[0].strip("[").split("]")[0]


def compose(text, lines, keep):
    """Return the file's new text and the block's lines."""
    outside, inside = split(text)
    named = {host_of(line) for line in lines}
    kept = [line for line in inside if host_of(line) in keep and host_of(line) not in named]
    block = [*kept, *lines]
    whole = outside + ([BEGIN, *block, END] if block else [])
    return "".join(line + "\n" for line in whole), block


def main():
    module = AnsibleModule(
        argument_spec={
            "user": {"type": "str", "required": True},
            "file": {"type": "str", "choices": ["authorized_keys", "known_hosts"], "required": True},
            "lines": {"type": "list", "elements": "str", "required": True},
            "keep": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    options = module.params
    try:
        entry = pwd.getpwnam(options["user"])
    except KeyError:
        if module.check_mode:  # setup has not made the user yet
            module.exit_json(changed=True, lines=options["lines"])
        module.fail_json(msg="there is no user %r on this node" % options["user"])
    folder = os.path.join(entry.pw_dir, ".ssh")
    path = os.path.join(folder, options["file"])
    before = ""
    if os.path.exists(path):
        with open(path) as stream:
            before = stream.read()
    after, block = compose(before, options["lines"], options["keep"])
    changed = after != before
    if changed and not module.check_mode:
        make_folders(folder, entry.pw_uid, entry.pw_gid, 0o700)
        handle, partial = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "w") as stream:
            stream.write(after)
        os.chown(partial, entry.pw_uid, entry.pw_gid)
        os.replace(partial, path)
    diff = {"before": before, "after": after, "before_header": path, "after_header": path}
    module.exit_json(changed=changed, lines=block, diff=diff)


if __name__ == "__main__":
    main()
