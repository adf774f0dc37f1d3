#!/usr/bin/python
"""Keep the stack's environment on a node: made by uv, complete before it is used, the one before it kept."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_env
short_description: Keep the stack's virtual environment on a node
description:
  - C(state=look) says what is there. C(state=present) makes the environment with uv as the training user, and leaves
    the one in use alone. C(state=used) lets the link lead to it, and a second link to the one before.
  - An environment without its stamp was interrupted, and is made anew; so is one that was changed since.
  - With I(built) the wheel built for this kind of node is installed, and the whole environment is digested and
    stamped. Without, everything else is installed, which is what the build needs.
options:
  state:
    description: What to do.
    type: str
    choices: [look, present, used]
    default: look
  root:
    description: Folder of environments.
    type: path
    required: true
  name:
    description: Name of the environment below I(root), or the absolute path of one that is not ours.
    type: str
    required: true
  link:
    description: Link that names the environment in use; with C(.previous) at its end, the one before.
    type: path
    required: true
  lock_text:
    description: The lock, with a hash for every package.
    type: str
    default: ""
  stack:
    description: The stack's data, kept in the stamp.
    type: dict
    default: {}
  sources:
    description: Packages of the lock that come as I(built).
    type: list
    elements: str
    default: []
  python:
    description: Interpreter that the environment is made from.
    type: path
    default: /usr/bin/python3
  user:
    description: The training user, who owns the environment.
    type: str
    required: true
  archive:
    description: Archive of packages on this node, uv among them.
    type: path
  from_index:
    description: Let uv fetch from the package index what I(archive) does not hold.
    type: bool
    default: false
  index:
    description: Further package index for I(from_index).
    type: str
    default: ""
  links:
    description: Further pages or folders of packages for I(from_index), as uv's C(--find-links).
    type: list
    elements: str
    default: []
  built:
    description: Wheel built for this kind of node, on this node.
    type: path
  keep:
    description: With C(state=used), how many environments stay besides those that a link or a live run names.
    type: int
    default: 0
author: Trackside
"""
EXAMPLES = r"""
- name: Install the environment
  trackside_env:
    state: present
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
complete:
  description: Whether the environment is whole, and unchanged since.
  returned: success
  type: bool
in_use:
  description: Whether the link leads to it.
  returned: success
  type: bool
digest:
  description: Digest of the environment's whole content, as of its installation.
  returned: success
  type: str
current:
  description: Name of the environment in use, and its stamp.
  returned: success
  type: dict
previous:
  description: Name of the environment that was in use before, and its stamp; both empty where there is none.
  returned: success
  type: dict
"""

import glob
import json
import os
import shutil
import tarfile
import zipfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_lock import locked_versions, select
from ansible.module_utils.trackside_trees import contents, digest_of, file_digest, quick_digest
from ansible.module_utils.trackside_users import make_folders, run_as, user_entry
from ansible.module_utils.trackside_work import workspace

STAMP = ".trackside.json"
# Every file as it was installed, by which check says what was changed since.
FILES = ".trackside.files.json"
# The published packages are whole; what is built is still to come.
HALF = ".trackside-half"
INSTALL = ["--no-config", "--quiet", "--no-deps", "--compile-bytecode"]


def read_json(path):
    try:
        with open(path) as stream:
            return json.load(stream)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}


def whole(env):
    """Say whether the environment is stamped, and unchanged since."""
    stamp = read_json(os.path.join(env, STAMP))
    return bool(stamp) and stamp["quick"] == quick_digest(os.path.join(env, "lib"))


def led_to(link):
    """Return the name and the stamp of what a link leads to, both empty where it leads nowhere."""
    target = os.path.realpath(link)
    if not os.path.islink(link) or not os.path.isdir(target):
        return {"name": "", "path": "", "stamp": {}}
    return {"name": os.path.basename(target), "path": target, "stamp": read_json(os.path.join(target, STAMP))}


def is_running_from(env, link):
    """Say whether a process of this node was started with a program of the environment."""
    paths = [env + "/"] + ([link + "/"] if os.path.realpath(link) == env else [])
    for entry in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(entry, "rb") as stream:
                words = stream.read().split(b"\0")
        except OSError:  # the process ended while we looked
            continue
        if any(word.startswith(path.encode()) for word in words for path in paths):
            return True
    return False


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


def origin(options, folder):
    """Return uv's flags that say where packages come from."""
    if not options["from_index"]:
        return ["--offline", "--no-index", "--find-links", folder]
    flags = ["--find-links", folder]
    flags += [flag for place in options["links"] for flag in ("--find-links", place)]
    # The lock's hashes decide what is installed, so it is no danger to take the better of two indexes.
    if options["index"]:
        flags += ["--index", options["index"], "--index-strategy", "unsafe-best-match"]
    return flags


def install(module, env, tool, folder, requirements, flags):
    run_as(
        module,
        module.params["user"],
        [tool, "pip", "install", "--python", os.path.join(env, "bin", "python"), *INSTALL, *flags, *requirements],
        environment={"UV_CACHE_DIR": os.path.join(folder, ".uv-cache"), "UV_LINK_MODE": "hardlink"},
    )


def link_cuda(env):
    """Give CUDA's libraries the names that a linker looks for: the wheels carry those of run time only."""
    for cuda in glob.glob(os.path.join(glob.escape(env), "lib", "python3*", "site-packages", "nvidia", "cu[0-9]*")):
        if not os.path.lexists(os.path.join(cuda, "lib64")):
            os.symlink("lib", os.path.join(cuda, "lib64"))
        for library in sorted(glob.glob(os.path.join(glob.escape(cuda), "lib", "lib*.so.*"))):
            plain = library[: library.index(".so.") + len(".so")]
            if not os.path.lexists(plain):
                os.symlink(os.path.basename(library), plain)


def install_published(module, env, tool, work):
    """Make the environment anew and install the lock's wheels: what was interrupted or changed is not to be trusted."""
    options = module.params
    if is_running_from(env, options["link"]):
        module.fail_json(
            msg="%s was changed since setup installed it and has to be made anew, but a program of it is running: "
            "end the run first (`trackside stop`)" % env
        )
    shutil.rmtree(env, ignore_errors=True)
    make_environment = [tool, "venv", "--quiet", "--no-config", "--offline", "--python", options["python"], env]
    run_as(module, options["user"], make_environment)
    lock = os.path.join(work, "wheels.lock")
    with open(lock, "w") as stream:
        stream.write(select(options["lock_text"], without=options["sources"]))
    os.chmod(lock, 0o644)
    install(module, env, tool, work, ["--requirement", lock], ["--require-hashes", *origin(options, work)])
    link_cuda(env)
    with open(os.path.join(env, HALF), "w"):
        pass


def write_stamp(options, env, entry):
    """Stamp the environment as whole."""
    found = contents(os.path.join(env, "lib"))
    with open(os.path.join(env, FILES), "w") as stream:
        json.dump(found, stream)
    stamp = {
        "name": options["name"],
        "digest": digest_of({name: content for name, (_size, _time, content) in found.items()}),
        "quick": quick_digest(os.path.join(env, "lib")),
        "built": {"file": os.path.basename(options["built"]), "sha256": file_digest(options["built"])},
        "stack": options["stack"],
        "lock": options["lock_text"],
    }
    partial = os.path.join(env, STAMP + ".new")
    with open(partial, "w") as stream:
        json.dump(stamp, stream, indent=2)
    os.chown(partial, entry.pw_uid, entry.pw_gid)
    os.replace(partial, os.path.join(env, STAMP))
    os.unlink(os.path.join(env, HALF))


def make(module, env, entry):
    """Take the environment as far as the options go."""
    options = module.params
    make_folders(options["root"], entry.pw_uid, entry.pw_gid)
    with workspace(options["root"], ".install-") as work:
        os.chown(work, entry.pw_uid, entry.pw_gid)
        if whole(env):
            return
        tool = unpack(options["archive"], work)
        if os.path.exists(os.path.join(env, STAMP)) or not os.path.exists(os.path.join(env, HALF)):
            install_published(module, env, tool, work)
        if options["built"]:
            install(module, env, tool, work, [options["built"]], ["--reinstall", "--offline", "--no-index"])
            write_stamp(options, env, entry)


def lead(link, target, entry):
    """Let `link` lead to `target`, in one step."""
    fresh = link + ".new"
    if os.path.lexists(fresh):
        os.unlink(fresh)
    os.symlink(target, fresh)
    os.lchown(fresh, entry.pw_uid, entry.pw_gid)
    os.replace(fresh, link)


def use(options, env, entry):
    """Let the links lead to the environment and the one before it, and remove those that are too many."""
    link, previous = options["link"], options["link"] + ".previous"
    before = led_to(link)
    if before["path"] and before["path"] != env:
        lead(previous, before["path"], entry)
    lead(link, env, entry)
    if options["keep"] > 0:
        prune(options, [os.path.realpath(link), os.path.realpath(previous)])


def prune(options, needed):
    """Remove the oldest environments; never one that a link leads to or a program runs from. Return their names."""
    others = [
        path
        for path in glob.glob(os.path.join(glob.escape(options["root"]), "*"))
        if os.path.isdir(path) and path not in needed and not is_running_from(path, options["link"])
    ]
    others.sort(key=os.path.getmtime, reverse=True)
    for path in others[max(0, options["keep"] - len(needed)) :]:
        shutil.rmtree(path)


def plain(lock):
    """Return the lock as lines `name version`, which a person can compare."""
    return "".join("%s %s\n" % pair for pair in sorted(locked_versions(lock).items())) if lock else ""


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["look", "present", "used"], "default": "look"},
            "root": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "link": {"type": "path", "required": True},
            "lock_text": {"type": "str", "default": ""},
            "stack": {"type": "dict", "default": {}},
            "sources": {"type": "list", "elements": "str", "default": []},
            "python": {"type": "path", "default": "/usr/bin/python3"},
            "user": {"type": "str", "required": True},
            "archive": {"type": "path"},
            "from_index": {"type": "bool", "default": False},
            "index": {"type": "str", "default": ""},
            "links": {"type": "list", "elements": "str", "default": []},
            "built": {"type": "path"},
            "keep": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    options = module.params
    env = os.path.join(options["root"], options["name"])
    foreign = os.path.isabs(options["name"])  # not made by us, so neither stamped nor ever written to
    current = led_to(options["link"])
    complete = os.access(os.path.join(env, "bin", "python"), os.X_OK) if foreign else whole(env)
    in_use = current["path"] == os.path.realpath(env)
    changed = (options["state"] == "present" and not complete) or (options["state"] == "used" and not in_use)
    diff = {}
    if changed and options["state"] == "used":
        diff = {"before": plain(current["stamp"].get("lock", "")), "after": plain(options["lock_text"])}
        diff.update(before_header=current["name"], after_header=options["name"])
    if changed and not module.check_mode:
        entry = user_entry(module, options["user"])
        if options["state"] == "present":
            make(module, env, entry)
        elif complete:
            use(options, os.path.realpath(env), entry)
        else:
            module.fail_json(msg="%s is not whole, so it is not used: run `trackside setup`" % env)
        complete = complete or whole(env)
        current = led_to(options["link"])
        in_use = current["path"] == os.path.realpath(env)
    stamp = {} if foreign else read_json(os.path.join(env, STAMP))
    module.exit_json(
        changed=changed,
        complete=complete,
        in_use=in_use,
        ready=complete and in_use,
        digest=stamp.get("digest", ""),
        built=stamp.get("built", {}),
        current=current,
        previous=led_to(options["link"] + ".previous"),
        diff=diff,
    )


if __name__ == "__main__":
    main()
