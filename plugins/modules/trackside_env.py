#!/usr/bin/python
"""Keep the stack's environment on a node: made by uv, from an archive of packages, offline."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_env
short_description: Keep the stack's virtual environment on a node
description:
  - Makes the environment with uv from an archive of packages, without a network, as the training user.
  - An environment without its stamp was interrupted, and is finished or made anew.
  - With I(built) the wheel built for this kind of node is installed, the whole environment is digested, stamped,
    and C(env) beside it becomes a link to it. Without, everything else is installed, which is what the build needs.
options:
  root:
    description: Folder of environments.
    type: path
    required: true
  name:
    description: Name of the environment below I(root).
    type: str
    required: true
  link:
    description: Link that names the environment in use.
    type: path
    required: true
  lock_text:
    description: The lock, with a hash for every package.
    type: str
    required: true
  sources:
    description: Packages of the lock that come as I(built).
    type: list
    elements: str
    default: []
  python:
    description: Interpreter that the environment is made from.
    type: path
    required: true
  user:
    description: The training user, who owns the environment.
    type: str
    required: true
  archive:
    description: Archive of packages on this node; without it the module only says whether the environment is ready.
    type: path
  built:
    description: Wheel built for this kind of node, on this node.
    type: path
author: Trackside
"""
EXAMPLES = r"""
- name: Install the environment
  trackside_env:
    root: /opt/trackside/envs
    name: cpu-0123456789ab
    link: /opt/trackside/env
    lock_text: "{{ lookup('ansible.builtin.file', 'cpu.lock') }}"
    sources: [deepspeed]
    python: /usr/bin/python3
    user: trackside
    archive: /opt/trackside/packages/packages.tar
"""
RETURN = r"""
ready:
  description: Whether the environment is complete and in use.
  returned: success
  type: bool
digest:
  description: Digest of the environment's whole content, as of its installation.
  returned: when ready
  type: str
"""

import glob
import json
import os
import shutil
import tarfile
import zipfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_lock import split_lock
from ansible.module_utils.trackside_trees import file_digest, full_digest, quick_digest
from ansible.module_utils.trackside_users import make_folders, run_as, user_entry
from ansible.module_utils.trackside_work import workspace

STAMP = ".trackside.json"
# The published packages are whole; what is built is still to come.
HALF = ".trackside-half"


def read_stamp(env):
    try:
        with open(os.path.join(env, STAMP)) as stream:
            return json.load(stream)
    except (FileNotFoundError, ValueError):
        return {}


def whole(env, stamp):
    """Say whether the environment is stamped, and unchanged since."""
    return bool(stamp) and stamp["quick"] == quick_digest(os.path.join(env, "lib"))


def unpack(archive, folder):
    """Unpack the packages and return the uv that is among them."""
    with tarfile.open(archive) as pack:
        for member in pack.getmembers():
            member.name = os.path.basename(member.name)
            pack.extract(member, folder)
    wheel = glob.glob(os.path.join(folder, "uv-*.whl"))[0]
    with zipfile.ZipFile(wheel) as inside:
        name = next(n for n in inside.namelist() if n.endswith("/scripts/uv"))
        tool = os.path.join(folder, "uv")
        with open(tool, "wb") as stream:
            stream.write(inside.read(name))
    os.chmod(tool, 0o755)
    return tool


def install(module, env, tool, folder, requirements, flags):
    offline = ["--offline", "--no-index", "--no-config", "--quiet", "--no-deps", "--compile-bytecode"]
    run_as(
        module,
        module.params["user"],
        [tool, "pip", "install", "--python", os.path.join(env, "bin", "python"), *offline, *flags, *requirements],
        environment={"UV_CACHE_DIR": os.path.join(folder, ".uv-cache"), "UV_LINK_MODE": "hardlink"},
    )


def install_published(module, env, tool, work):
    """Make the environment anew and install the lock's wheels: what was interrupted or changed is not to be trusted."""
    options = module.params
    shutil.rmtree(env, ignore_errors=True)
    make_environment = [tool, "venv", "--quiet", "--no-config", "--offline", "--python", options["python"], env]
    run_as(module, options["user"], make_environment)
    lock = os.path.join(work, "wheels.lock")
    with open(lock, "w") as stream:
        stream.write(split_lock(options["lock_text"], options["sources"])[0])
    os.chmod(lock, 0o644)
    install(module, env, tool, work, ["--requirement", lock], ["--require-hashes", "--find-links", work])
    with open(os.path.join(env, HALF), "w"):
        pass


def write_stamp(options, env, entry):
    """Stamp the environment as whole and return the stamp."""
    stamp = {
        "name": options["name"],
        "digest": full_digest(os.path.join(env, "lib")),
        "quick": quick_digest(os.path.join(env, "lib")),
        "built": {"file": os.path.basename(options["built"]), "sha256": file_digest(options["built"])},
    }
    partial = os.path.join(env, STAMP + ".new")
    with open(partial, "w") as stream:
        json.dump(stamp, stream, indent=2)
    os.chown(partial, entry.pw_uid, entry.pw_gid)
    os.replace(partial, os.path.join(env, STAMP))
    os.unlink(os.path.join(env, HALF))
    return stamp


def use(link, env, entry):
    """Let `link` lead to the environment."""
    fresh = link + ".new"
    if os.path.lexists(fresh):
        os.unlink(fresh)
    os.symlink(env, fresh)
    os.lchown(fresh, entry.pw_uid, entry.pw_gid)
    os.replace(fresh, link)


def make(module, env, entry):
    """Take the environment as far as the options go, and return its stamp, empty while it is half made."""
    options = module.params
    with workspace(options["root"], ".install-") as work:
        os.chown(work, entry.pw_uid, entry.pw_gid)
        stamp = read_stamp(env)
        if not whole(env, stamp):
            tool = unpack(options["archive"], work)
            if stamp or not os.path.exists(os.path.join(env, HALF)):
                install_published(module, env, tool, work)
            if not options["built"]:
                return {}
            install(module, env, tool, work, [options["built"]], ["--reinstall"])
            stamp = write_stamp(options, env, entry)
        use(options["link"], env, entry)
        return stamp


def main():
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "link": {"type": "path", "required": True},
            "lock_text": {"type": "str", "required": True},
            "sources": {"type": "list", "elements": "str", "default": []},
            "python": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "archive": {"type": "path"},
            "built": {"type": "path"},
        },
        supports_check_mode=True,
    )
    options = module.params
    env = os.path.join(options["root"], options["name"])
    stamp = read_stamp(env)
    in_use = os.path.realpath(options["link"]) == os.path.realpath(env)
    ready = in_use and whole(env, stamp)
    if ready or not options["archive"]:
        module.exit_json(changed=False, ready=ready, digest=stamp.get("digest", ""), built=stamp.get("built", {}))
    if module.check_mode:
        module.exit_json(changed=True, ready=False, digest="", built={})
    entry = user_entry(module, options["user"])
    make_folders(options["root"], entry.pw_uid, entry.pw_gid)
    stamp = make(module, env, entry)
    module.exit_json(changed=True, ready=bool(stamp), digest=stamp.get("digest", ""), built=stamp.get("built", {}))


if __name__ == "__main__":
    main()
