#!/usr/bin/python
"""Build a source package of the stack, with its compiled ops, into a wheel for this kind of node."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_build
short_description: Build a source package of the stack into a wheel
description:
  - Builds with the environment's own Python and torch, as the training user, using all cores.
  - Does nothing when I(dest) holds a wheel already.
options:
  archive:
    description: Archive of packages on this node that holds the source.
    type: path
    required: true
  package:
    description: Name of the package.
    type: str
    required: true
  python:
    description: Interpreter of the environment that has what the build needs.
    type: path
    required: true
  environment:
    description: Variables of the build, as DeepSpeed's DS_BUILD_ switches.
    type: dict
    default: {}
  dest:
    description: Folder that the wheel is left in.
    type: path
    required: true
  user:
    description: The training user.
    type: str
    required: true
author: Trackside
"""
EXAMPLES = r"""
- name: Build DeepSpeed
  trackside_build:
    archive: /opt/trackside/packages/packages.tar
    package: deepspeed
    python: /opt/trackside/envs/cpu/bin/python
    environment: {DS_BUILD_CPU_ADAM: "1"}
    dest: /opt/trackside/packages/built
    user: trackside
"""
RETURN = r"""
wheel:
  description: Path of the wheel.
  returned: success
  type: str
"""

import glob
import os
import shutil
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_users import make_folders, run_as, user_entry
from ansible.module_utils.trackside_work import workspace

# Debug symbols cost a sixth of the compile time and ten times the wheel; nobody debugs these ops on a node. torch's own
# switch leaves out the headers of its C++ frontend, half of the compile time, which no op uses.
COMPILER = '#!/bin/sh\nexec g++ "$@" -g0 -DTORCH_INDUCTOR_CPP_WRAPPER\n'


def build_environment(module, work):
    """Return the variables of the build: ours, then the stack's own."""
    cores = os.cpu_count() or 1
    compiler = os.path.join(work, "c++")
    with open(compiler, "w") as stream:
        stream.write(COMPILER)
    os.chmod(compiler, 0o755)
    python = module.params["python"]
    return {
        "CC": compiler,
        "CXX": compiler,
        "MAX_JOBS": str(cores),
        "PATH": os.pathsep.join([os.path.dirname(python), "/usr/local/bin:/usr/bin:/bin"]),
        "TMPDIR": work,
        **{name: str(value) for name, value in module.params["environment"].items()},
    }


def build(module, entry):
    options = module.params
    with workspace(os.path.dirname(options["archive"]), ".build-") as work:
        if there := glob.glob(os.path.join(options["dest"], "*.whl")):
            return there[0]
        with tarfile.open(options["archive"]) as pack:
            for member in pack.getmembers():
                if os.path.basename(member.name).startswith(options["package"] + "-"):
                    pack.extract(member, work)
        source = os.path.join(work, "source")
        archives = glob.glob(os.path.join(work, options["package"] + "-*.tar.gz"))
        if not archives:
            module.fail_json(msg="%s holds no source of %s" % (options["archive"], options["package"]))
        with tarfile.open(archives[0]) as pack:
            pack.extractall(work)
        os.rename(archives[0][: -len(".tar.gz")], source)
        environment = build_environment(module, work)
        shutil.chown(work, entry.pw_uid, entry.pw_gid)
        for folder, folders, files in os.walk(work):
            for name in folders + files:
                os.lchown(os.path.join(folder, name), entry.pw_uid, entry.pw_gid)
        jobs = environment["MAX_JOBS"]
        command = [options["python"], "setup.py", "-q", "build_ext", "-j", jobs, "bdist_wheel", "--dist-dir", "dist"]
        run_as(module, options["user"], command, environment=environment, cwd=source)
        wheel = glob.glob(os.path.join(source, "dist", "*.whl"))[0]
        make_folders(options["dest"], entry.pw_uid, entry.pw_gid)
        target = os.path.join(options["dest"], os.path.basename(wheel))
        os.replace(wheel, target)
        return target


def main():
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path", "required": True},
            "package": {"type": "str", "required": True},
            "python": {"type": "path", "required": True},
            "environment": {"type": "dict", "default": {}},
            "dest": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    there = glob.glob(os.path.join(module.params["dest"], "*.whl"))
    if there or module.check_mode:
        module.exit_json(changed=not there, wheel=there[0] if there else "")
    module.exit_json(changed=True, wheel=build(module, user_entry(module, module.params["user"])))


if __name__ == "__main__":
    main()
