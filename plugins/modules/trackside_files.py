#!/usr/bin/python
"""Keep a set of small files of one folder as given."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_files
short_description: Keep a set of small files and folders as given
description:
  - Writes all given files in one round trip, each whole or not at all, and says which ones changed.
  - Makes the given folders, for everybody to read.
options:
  root:
    description: Folder that the files lie in; it is made when absent.
    type: path
    required: true
  files:
    description: Content by relative path.
    type: dict
    default: {}
  folders:
    description: User and group that own a folder, by relative path.
    type: dict
    default: {}
  owner:
    description: User and group that own the files.
    type: str
    required: true
  mode:
    description: Permissions of the files, octal.
    type: str
    default: "0644"
  modes:
    description: Permissions of single files, by relative path.
    type: dict
    default: {}
author: Trackside
"""
EXAMPLES = r"""
- name: Write the hostfile
  trackside_files:
    root: /opt/trackside/etc
    owner: root
    files:
      hostfile: "node1 slots=1\n"
"""
RETURN = r"""
written:
  description: Relative paths of the files and folders that changed.
  returned: success
  type: list
  elements: str
"""

import os
import pwd
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_users import make_folders


def current(path):
    try:
        with open(path) as stream:
            return stream.read(), os.stat(path)
    except FileNotFoundError:
        return "", None


def write(path, content, mode, uid, gid):
    """Put the file in its place whole, with its owner and permissions from its first moment."""
    handle, partial = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".trackside-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(content)
        os.chmod(partial, mode)
        os.chown(partial, uid, gid)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def owner_entry(module, name):
    """Return the passwd entry of `name`, or root's in a dry run on a node where setup has not made the user yet."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        if not module.check_mode:
            module.fail_json(msg="there is no user %r on this node" % name)
        return pwd.getpwuid(0)


def keep_folder(module, path, entry):
    """Make the folder, or mend its owner and permissions; say whether that was needed."""
    try:
        status = os.stat(path)
        if (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o755, entry.pw_uid, entry.pw_gid):
            return False
    except FileNotFoundError:
        pass
    if not module.check_mode:
        make_folders(path, entry.pw_uid, entry.pw_gid)
        os.chmod(path, 0o755)
        os.chown(path, entry.pw_uid, entry.pw_gid)
    return True


def main():
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "files": {"type": "dict", "default": {}},
            "folders": {"type": "dict", "default": {}},
            "owner": {"type": "str", "required": True},
            "mode": {"type": "str", "default": "0644"},
            "modes": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    entry = owner_entry(module, module.params["owner"])
    written, diffs = [], []
    for name, owner in sorted(module.params["folders"].items()):
        if keep_folder(module, os.path.normpath(os.path.join(root, name)), owner_entry(module, owner)):
            written.append(name)
    for name, content in sorted(module.params["files"].items()):
        path = os.path.join(root, name)
        mode = int(module.params["modes"].get(name, module.params["mode"]), 8)
        before, status = current(path)
        same = status and before == content and status.st_mode & 0o7777 == mode and status.st_uid == entry.pw_uid
        if same:
            continue
        written.append(name)
        secret = mode & 0o077 == 0
        diffs.append(
            {
                "before_header": path,
                "after_header": path,
                "before": "" if secret else before,
                "after": "(not shown)\n" if secret else content,
            }
        )
        if not module.check_mode:
            make_folders(os.path.dirname(path), entry.pw_uid, entry.pw_gid)
            write(path, content, mode, entry.pw_uid, entry.pw_gid)
    module.exit_json(changed=bool(written), written=written, diff=diffs)


if __name__ == "__main__":
    main()
