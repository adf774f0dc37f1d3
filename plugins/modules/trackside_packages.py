#!/usr/bin/python
"""Download a stack's packages once, on the controller."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_packages
short_description: Download a stack's packages once, on the controller
description:
  - Downloads what the lock names with pip, so that pip's configuration of the controller (mirrors, links) holds,
    for the Python and the processor of the nodes; every file is checked against the lock's hashes.
  - Packs the files into one archive, named after the lock's digest, that setup sends to the nodes.
options:
  lock_text:
    description: The lock, with a hash for every package.
    type: str
    required: true
  sources:
    description: Packages that are published as source only.
    type: list
    elements: str
    default: []
  only:
    description: The only packages to download; all when left out.
    type: list
    elements: str
  index:
    description: Further package index that is asked when the controller's own configuration does not have a package.
    type: str
    default: ""
  python:
    description: The nodes' Python, as C(3.11).
    type: str
    required: true
  architecture:
    description: The nodes' processor, as C(x86_64).
    type: str
    required: true
  glibc:
    description: The oldest glibc among the nodes, as C(2.36).
    type: str
    required: true
  cache:
    description: Folder on the controller that archives are kept in.
    type: path
    required: true
author: Trackside
"""
EXAMPLES = r"""
- name: Download the packages
  delegate_to: localhost
  trackside_packages:
    lock_text: "{{ lookup('ansible.builtin.file', 'stacks/cpu.lock') }}"
    sources: [deepspeed]
    python: "3.11"
    architecture: x86_64
    glibc: "2.36"
    cache: ~/.cache/trackside/packages
"""
RETURN = r"""
archive:
  description: Path of the archive on the controller.
  returned: success
  type: str
sha256:
  description: Its sha256.
  returned: success
  type: str
"""

import hashlib
import os
import subprocess
import sys
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_lock import select
from ansible.module_utils.trackside_markers import holds_for
from ansible.module_utils.trackside_trees import file_digest
from ansible.module_utils.trackside_work import workspace

OLDEST_GLIBC = 5  # PEP 600: manylinux_2_5 is the first


def platforms(architecture, glibc):
    """Return pip's platform tags for a node, newest first (PEP 600 and its older names)."""
    minor = int(glibc.split(".")[1])
    tags = ["manylinux_2_%d_%s" % (n, architecture) for n in range(minor, OLDEST_GLIBC - 1, -1)]
    old = [("manylinux2014", 17), ("manylinux2010", 12), ("manylinux1", 5)]
    return tags + ["%s_%s" % (name, architecture) for name, n in old if n <= minor]


def download(lock, folder, options):
    """Return pip's argument list that downloads what `lock` names into `folder`."""
    return [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        "--requirement",
        lock,
        "--dest",
        folder,
        *options,
    ]


def run(module, lock, folder, options, index):
    """Download with the controller's own configuration, and once more with the stack's index when that fails."""
    words = ""
    for extra in [[], ["--extra-index-url", index]] if index else [[]]:
        done = subprocess.run(
            download(lock, folder, [*options, *extra]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return
        words = done.stdout
        if "No module named pip" in words:
            break
    errors = [line for line in words.splitlines() if line.startswith("ERROR")] or words.splitlines()[-3:]
    module.fail_json(
        msg="the controller could not download the stack's packages: %s. Check its internet access, or pip's "
        "configuration (`pip config list`) for a mirror." % " ".join(errors),
        stdout=words,
    )


def pack(module, archive):
    """Download into a workspace and leave the archive, with its sha256 beside it."""
    options = module.params
    os.makedirs(options["cache"], exist_ok=True)
    holds = holds_for(options["python"], options["architecture"])
    tags = [flag for tag in platforms(options["architecture"], options["glibc"]) for flag in ("--platform", tag)]
    binary = ["--only-binary", ":all:", "--python-version", options["python"], "--implementation", "cp", *tags]
    wanted = options["only"]
    sources = [name for name in options["sources"] if wanted is None or name in wanted]
    parts = (
        ("wheels", select(options["lock_text"], wanted, options["sources"], holds), binary),
        ("sources", select(options["lock_text"], sources, (), holds), ["--no-binary", ":all:"]),
    )
    with workspace(options["cache"], ".download-") as work:
        folder = os.path.join(work, "packages")
        os.mkdir(folder)
        for name, text, flags in parts:
            if text:
                lock = os.path.join(work, name + ".lock")
                with open(lock, "w") as stream:
                    stream.write(text)
                run(module, lock, folder, flags, options["index"])
        partial = os.path.join(work, "packages.tar")
        with tarfile.open(partial, "w") as tar:
            for name in sorted(os.listdir(folder)):
                tar.add(os.path.join(folder, name), name)
        with open(archive + ".sha256", "w") as stream:
            stream.write(file_digest(partial))
        os.replace(partial, archive)


def main():
    module = AnsibleModule(
        argument_spec={
            "lock_text": {"type": "str", "required": True},
            "sources": {"type": "list", "elements": "str", "default": []},
            "only": {"type": "list", "elements": "str"},
            "index": {"type": "str", "default": ""},
            "python": {"type": "str", "required": True},
            "architecture": {"type": "str", "required": True},
            "glibc": {"type": "str", "required": True},
            "cache": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    options = module.params
    about = [
        options["lock_text"],
        options["python"],
        options["architecture"],
        options["glibc"],
        *(options["only"] or []),
    ]
    key = hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
    archive = os.path.join(options["cache"], "packages-%s.tar" % key)
    there = os.path.exists(archive)
    if module.check_mode:
        module.exit_json(changed=not there, archive=archive, sha256="")
    if not there:
        pack(module, archive)
    with open(archive + ".sha256") as stream:
        module.exit_json(changed=not there, archive=archive, sha256=stream.read())


if __name__ == "__main__":
    main()
