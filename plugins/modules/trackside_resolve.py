#!/usr/bin/python
"""Make a lock from requirements, with uv, on the controller."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_resolve
short_description: Make a lock from requirements, with uv, on the controller
description:
  - Resolves for all given versions of Python at once and writes a lock with a version, a marker and every hash for
    each package. pip's configuration of the controller (index, links) is uv's here too.
  - With I(stack_lock) only what that lock lacks is written, and requirements that would change it are refused. A lock
    whose first line names what went into it is not made again.
options:
  requirements:
    description: Requirements, one each, as pip writes them.
    type: list
    elements: str
    required: true
  python:
    description: The nodes' versions of Python, as C(3.11).
    type: list
    elements: str
    required: true
  architectures:
    description: The nodes' processors, as C(x86_64).
    type: list
    elements: str
    required: true
  index:
    description: Further package index.
    type: str
    default: ""
  stack_lock:
    description: Lock that has to stay as it is.
    type: str
    default: ""
  title:
    description: First words of the lock.
    type: str
    default: A lock
  dest:
    description: Where the lock is kept.
    type: path
    required: true
author: Trackside
"""
EXAMPLES = r"""
- name: Lock what the training needs besides the stack
  delegate_to: localhost
  trackside_resolve:
    requirements: [tiktoken]
    python: ["3.11"]
    architectures: [x86_64]
    stack_lock: "{{ lookup('ansible.builtin.file', 'stacks/cpu.lock') }}"
    dest: inventory/mine/requirements.lock
"""
RETURN = r"""
lock:
  description: The lock's text.
  returned: success
  type: str
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_lock import entries, locked_versions, select
from ansible.module_utils.trackside_markers import narrowed

PROJECT = """[project]
name = "stack"
version = "0"
requires-python = ">={first},<{beyond}"
dependencies = [{requirements}]
[tool.uv]
environments = [{environments}]
"""


def project(options):
    """Return the pyproject.toml that stands for the requirements."""
    minors = sorted(int(version.split(".")[1]) for version in options["python"])
    where = ["\"sys_platform == 'linux' and platform_machine == '%s'\"" % name for name in options["architectures"]]
    return PROJECT.format(
        first="3.%d" % minors[0],
        beyond="3.%d" % (minors[-1] + 1),
        requirements=", ".join('"%s"' % line.replace('"', "'") for line in options["requirements"]),
        environments=", ".join(where),
    )


def pip_flags():
    """Return pip's configuration of this machine as uv's flags."""
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    pairs = [line.partition("=")[::2] for line in asked.stdout.splitlines()]
    values = {name.rpartition(".")[2]: value.strip("'") for name, value in pairs}
    flags = [flag for place in values.get("find-links", "").split() for flag in ("--find-links", place)]
    for name in ("index-url", "extra-index-url"):
        flags += [flag for place in values.get(name, "").split() for flag in ("--" + name, place)]
    return flags


def find_uv(module):
    """Return the path of uv: beside this Python, or on the PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    found = beside if os.path.exists(beside) else shutil.which("uv")
    if not found:
        module.fail_json(msg="uv is not installed on the controller: `%s -m pip install uv`" % sys.executable)
    return found


def resolve(module, tool):
    """Return the resolved lock, without comments."""
    options = module.params
    words = ""
    with tempfile.TemporaryDirectory() as work:
        with open(os.path.join(work, "pyproject.toml"), "w") as stream:
            stream.write(project(options))
        flags = []
        if options["stack_lock"]:
            constraints = os.path.join(work, "constraints.txt")
            with open(constraints, "w") as stream:
                stream.writelines(
                    "%s==%s%s\n" % (name, version, " ; " + marker if marker else "")
                    for name, version, marker, _block in entries(options["stack_lock"])
                )
            flags += ["--constraints", constraints]
        command = [tool, "pip", "compile", "pyproject.toml", "--universal", "--generate-hashes", "--no-annotate"]
        command += ["--no-header", "--quiet", *flags]
        # PyPI, or what uv is configured with, comes first: a mirror of some would make another lock of the rest.
        best = [*pip_flags(), "--index-strategy", "unsafe-best-match"]
        places = [[], best] + ([[*best, "--index", options["index"]]] if options["index"] else [])
        for place in places:
            done = subprocess.run(
                [*command, *place],
                cwd=work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout
            words += done.stderr
    return refuse(module, words)


def refuse(module, words):
    """Fail with what uv said."""
    options = module.params
    against = " beside the stack, whose versions stay as they are" if options["stack_lock"] else ""
    module.fail_json(
        msg="the requirements cannot be met%s: %s" % (against, " ".join(words.split())[:600]), stderr=words
    )


def made_from(options):
    """Return the first words of the lock: what it is, and a digest of what goes into it."""
    about = [options["stack_lock"], *options["requirements"], *options["python"], *options["architectures"]]
    return "# %s, made from %s" % (options["title"], hashlib.sha256("\n".join(about).encode()).hexdigest()[:16])


def main():
    module = AnsibleModule(
        argument_spec={
            "requirements": {"type": "list", "elements": "str", "required": True},
            "python": {"type": "list", "elements": "str", "required": True},
            "architectures": {"type": "list", "elements": "str", "required": True},
            "index": {"type": "str", "default": ""},
            "stack_lock": {"type": "str", "default": ""},
            "title": {"type": "str", "default": "A lock"},
            "dest": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    options = module.params
    there = ""
    if os.path.exists(options["dest"]):
        with open(options["dest"]) as stream:
            there = stream.read()
    if options["stack_lock"] and there.startswith(made_from(options)):
        module.exit_json(changed=False, lock=there)
    nodes = [(python, architecture) for python in options["python"] for architecture in options["architectures"]]
    lock = narrowed(resolve(module, find_uv(module)), nodes)
    if options["stack_lock"]:
        lock = select(lock, without=set(locked_versions(options["stack_lock"])))
    # The digest of what follows: setup refuses a lock that was edited.
    lock = "%s, sha256 %s\n%s" % (made_from(options), hashlib.sha256(lock.encode()).hexdigest(), lock)
    if lock != there and not module.check_mode:
        with open(options["dest"] + ".new", "w") as stream:
            stream.write(lock)
        os.replace(options["dest"] + ".new", options["dest"])
    module.exit_json(changed=lock != there, lock=lock, diff={"before": there, "after": lock})


if __name__ == "__main__":
    main()
