#!/usr/bin/python
"""Measure on one node, in one round trip, what check compares with the stack and between nodes."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_check
short_description: Measure on one node what check compares across all
description:
  - Reads versions, the environment, DeepSpeed's ops, OpenMPI, GPUs, network and memory of the node without importing
    torch. On the head it reaches every node over the mesh and reads there what a process started that way gets.
  - Changes nothing.
options:
  prefix:
    description: Folder of everything that Trackside keeps on the node.
    type: path
    required: true
  user:
    description: The training user.
    type: str
    required: true
  interface:
    description: The interface of the ranks' network.
    type: str
    default: ""
  facts:
    description: What trackside_node_facts has read of this node.
    type: dict
    default: {}
  reach:
    description: Names of the nodes that this one has to reach over ssh.
    type: list
    elements: str
    default: []
  deep:
    description: Read every file of the environment.
    type: bool
    default: false
  report:
    description: Ask DeepSpeed's own report too, which takes seconds.
    type: bool
    default: false
author: Trackside
"""
EXAMPLES = r"""
- name: Look at the node
  trackside_check:
    prefix: /opt/trackside
    user: trackside
    interface: eth0
    reach: [node1, node2]
"""
RETURN = r"""
measured:
  description: One value for each question, as text or a number.
  returned: success
  type: dict
stack:
  description: The stack that setup has installed.
  returned: success
  type: dict
mesh:
  description: For each reached node ssh's words (empty when all is well), limits in kB and files, and the clock.
  returned: success
  type: dict
"""

import glob
import json
import os
import platform
import re
import time
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_trees import changes
from ansible.module_utils.trackside_users import run_as, user_entry

COLOR = re.compile(r"\x1b\[[0-9;]*m")
AT_A_TIME = 8
SHARED_MEMORY = os.path.join("/dev", "shm")
NAMED_FILES = 3
# What a process that ssh starts gets, said in one line.
PROBE = "echo trackside $(ulimit -l) $(ulimit -n) $(date +%s.%N)"


def report_ops(text):
    """Return, from ds_report's text, {op: "installed" | "compatible" | "incompatible"}."""
    found = {}
    for name, installed, compatible in re.findall(
        r"^(\w+) \.+ *\[(YES|NO)\] \.+ *\[(OKAY|NO)\]", COLOR.sub("", text), re.MULTILINE
    ):
        found[name] = "installed" if installed == "YES" else "compatible" if compatible == "OKAY" else "incompatible"
    return found


def site_packages(env):
    """Return the folder of the environment's packages, empty when there is none."""
    found = sorted(glob.glob(os.path.join(glob.escape(env), "lib", "python3*", "site-packages")))
    return found[0] if found else ""


def distributions(site):
    """Return {name: version} of what is installed, read from the names of the metadata folders (PEP 376)."""
    found = {}
    for path in glob.glob(os.path.join(glob.escape(site), "*.dist-info")):
        name, _dash, version = os.path.basename(path)[: -len(".dist-info")].partition("-")
        found[name.lower().replace("_", "-")] = version
    return found


def torch_version(site):
    """Return torch's version and its CUDA, as its own files say; both empty when there is no torch."""
    try:
        with open(os.path.join(site, "torch", "version.py")) as stream:
            text = stream.read()
    except OSError:
        return "", ""
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda: Optional\[str\] = '([^']+)'", text, re.MULTILINE)
    return version.group(1) if version else "", cuda.group(1) if cuda else ""


def op_files(site, ops):
    """Return those of `ops` whose compiled file is installed."""
    places = [
        os.path.basename(p) for p in glob.glob(os.path.join(glob.escape(site), "deepspeed", "ops", "*", "*_op*.so"))
    ]
    return sorted(op for op in ops if any(re.match(r"(deepspeed_)?%s_op\." % op, name) for name in places))


def openmpi(text, path):
    """Return `version in prefix` from what mpirun says and where it really lies; empty without one."""
    version = re.search(r"\(Open MPI\) (\S+)", text)
    return "%s in %s" % (version.group(1), os.path.dirname(os.path.dirname(path))) if version else ""


def measure_openmpi(module, user):
    status, path, _words = run_as(module, user, ["sh", "-c", "command -v mpirun"], check=False)
    if status != 0:
        return ""
    _status, text, _words = run_as(module, user, [path.strip(), "--version"], check=False)
    return openmpi(text, path.strip())


def environment(env, deep):
    """Return what the environment is, and what was changed in it since setup, both as text."""
    folder = os.path.realpath(env)
    try:
        with open(os.path.join(folder, ".trackside.json")) as stream:
            stamp = json.load(stream)
        with open(os.path.join(folder, ".trackside.files.json")) as stream:
            known = json.load(stream)
    except (FileNotFoundError, ValueError):
        names = sorted("%s==%s" % pair for pair in distributions(site_packages(folder)).items())
        return "%d packages in %s" % (len(names), folder), "", names
    words = changes(os.path.join(folder, "lib"), known, deep)
    further = " and %d more" % (len(words) - NAMED_FILES) if len(words) > NAMED_FILES else ""
    return "%s %s" % (stamp["name"], stamp["digest"][:12]), ", ".join(words[:NAMED_FILES]) + further, []


def mtu(interface):
    try:
        with open("/sys/class/net/%s/mtu" % interface) as stream:
            return int(stream.read())
    except OSError:
        return 0


def probe(module, user, name):
    """Return what a process started over ssh on `name` gets, and by how much that clock differs (seconds)."""
    command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", name, PROBE]
    began = time.time()
    status, text, words = run_as(module, user, command, check=False, timeout=60)
    ended = time.time()
    if status != 0:
        return {"words": (words.strip().splitlines() or ["exit status %d" % status])[-1]}
    said = re.search(r"^trackside (\S+) (\S+) (\S+)$", text, re.MULTILINE)
    rest = text.replace(said.group(0), "").strip() if said else text.strip()
    if not said or rest:
        return {"words": "its shell prints %r at a login that is not interactive" % rest[:80]}
    here = (began + ended) / 2
    return {
        "words": "",
        "memlock": said.group(1),
        "nofile": said.group(2),
        "clock": round(float(said.group(3)) - here, 3),
        "clock_error": round((ended - began) / 2, 3),
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "interface": {"type": "str", "default": ""},
            "facts": {"type": "dict", "default": {}},
            "reach": {"type": "list", "elements": "str", "default": []},
            "deep": {"type": "bool", "default": False},
            "report": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    options = module.params
    user = options["user"]
    user_entry(module, user)
    env = os.path.join(options["prefix"], "env")
    python = os.path.join(env, "bin", "python")
    if not os.path.exists(python):
        module.fail_json(msg="%s is missing: run `trackside setup` (playbooks/setup.yml)" % python)
    site = site_packages(env)
    installed = distributions(site)
    torch, cuda = torch_version(site)
    _status, version, _words = run_as(module, user, [python, "-c", "import platform; print(platform.python_version())"])
    identity, changed, packages = environment(env, options["deep"])
    facts = options["facts"]
    with open(os.path.join(options["prefix"], "etc", "setup.json")) as stream:
        stack = json.load(stream)["stack_data"]
    ops = op_files(site, stack["ops"])
    if options["report"]:
        with open(os.path.join(options["prefix"], "etc", ".deepspeed_env")) as stream:
            variables = dict(line.strip().split("=", 1) for line in stream if "=" in line)
        variables["PATH"] = os.path.dirname(python) + ":/usr/local/bin:/usr/bin:/bin"
        command = [python, "-m", "deepspeed.env_report"]
        _status, text, _words = run_as(module, user, command, environment=variables, check=False)
        said = report_ops(text)
        ops = [op for op in ops if "installed" in (said.get(op), said.get("deepspeed_" + op))]
    with ThreadPoolExecutor(max_workers=AT_A_TIME) as pool:
        answers = pool.map(lambda name: probe(module, user, name), options["reach"])
        mesh = dict(zip(options["reach"], answers))
    shm = os.statvfs(SHARED_MEMORY)
    gpus = facts.get("gpus") or []
    module.exit_json(
        changed=False,
        stack=stack,
        measured={
            "os": (facts.get("os") or {}).get("name", ""),
            "kernel": platform.release(),
            "glibc": platform.libc_ver()[1],
            "architecture": platform.machine(),
            "python": version.strip(),
            "torch": torch,
            "torch_cuda": cuda,
            "nccl": next((v for name, v in installed.items() if re.match(r"nvidia-nccl-cu\d+$", name)), ""),
            "deepspeed": installed.get("deepspeed", ""),
            "ops": ops,
            "openmpi": measure_openmpi(module, user),
            "driver": (facts.get("driver") or {}).get("loaded") or "",
            "gpus": ["%d x %s" % (gpus.count(name), name) for name in sorted(set(gpus))],
            "environment": identity,
            "changed": changed,
            "packages": packages,
            "mtu": mtu(options["interface"]) if options["interface"] else 0,
            "shm": shm.f_frsize * shm.f_blocks,
        },
        mesh=mesh,
    )


if __name__ == "__main__":
    main()
