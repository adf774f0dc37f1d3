#!/usr/bin/python
"""Read what Trackside must know of one node, in one round trip."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_node_facts
short_description: Read what Trackside must know of one node
description:
  - Reads the operating system, Python, addresses, host keys, GPUs and limits of a node in one round trip.
  - Changes nothing.
options:
  prefix:
    description: Folder whose file system's free space is wanted; it need not exist yet.
    type: path
    required: true
  python:
    description: Interpreter that the node's environment is made from.
    type: path
    required: true
author: Trackside
"""
EXAMPLES = r"""
- name: Read the node
  trackside_node_facts:
    prefix: /opt/trackside
    python: /usr/bin/python3
  register: node
"""
RETURN = r"""
node:
  description: What was read.
  returned: success
  type: dict
"""

import glob
import hashlib
import json
import os
import platform
import re
import shutil

from ansible.module_utils.basic import AnsibleModule

BRIDGES = re.compile(r"^(lo|docker|br-|virbr|veth|cni|podman|lxc|lxd|flannel|cali|cilium|vnet|kube|tap)")
CAP_SYS_RESOURCE = 24  # linux/capability.h


def addresses(module):
    """Return the IPv4 addresses of the interfaces that can lead to another machine."""
    _status, text, _words = module.run_command(["ip", "-j", "-4", "addr"], check_rc=True)
    found = []
    for link in json.loads(text):
        if BRIDGES.match(link["ifname"]):
            continue
        for entry in link.get("addr_info", []):
            if entry.get("scope") == "global":
                found.append(
                    {
                        "interface": link["ifname"],
                        "address": entry["local"],
                        "prefix": entry["prefixlen"],
                        "mtu": link.get("mtu"),
                    }
                )
    return found


def all_addresses(module):
    """Return every address that a connection from this node to another, or to itself, can come from."""
    _status, text, _words = module.run_command(["ip", "-j", "addr"], check_rc=True)
    return sorted({e["local"] for link in json.loads(text) for e in link.get("addr_info", [])})


def host_keys():
    """Return the node's public host keys, as `type key`."""
    found = []
    for path in sorted(glob.glob("/etc/ssh/ssh_host_*_key.pub")):
        with open(path) as stream:
            found.append(" ".join(stream.read().split()[:2]))
    return found


def os_release():
    with open("/etc/os-release") as stream:
        pairs = [line.strip().split("=", 1) for line in stream if "=" in line]
    values = {name: value.strip('"') for name, value in pairs}
    return {
        "id": values.get("ID", "unknown"),
        "like": values.get("ID_LIKE", "").split(),
        "version": values.get("VERSION_ID", ""),
        "name": values.get("PRETTY_NAME", values.get("ID", "unknown")),
    }


def cpu():
    """Return the processor's model and instruction set extensions, which compiled ops depend on."""
    with open("/proc/cpuinfo") as stream:
        text = stream.read()
    model = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return {
        "model": model.group(1).strip() if model else "unknown",
        "flags": sorted(flags.group(1).split()) if flags else [],
    }


def gpus(module):
    """Return the names of the GPUs, in the order of their index."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    status, text, _words = module.run_command([tool, "--query-gpu=name", "--format=csv,noheader"])
    return [line.strip() for line in text.splitlines() if line.strip()] if status == 0 else []


def limits():
    """Return the ceilings (bytes, files) that this node can grant, None where it can grant anything."""
    with open("/proc/1/status") as stream:
        capabilities = int(re.search(r"^CapEff:\s*([0-9a-f]+)$", stream.read(), re.MULTILINE).group(1), 16)
    if capabilities >> CAP_SYS_RESOURCE & 1:
        return {"memlock": None, "nofile": None}
    with open("/proc/1/limits") as stream:
        text = stream.read()
    hard = {}
    for name, title in (("memlock", "Max locked memory"), ("nofile", "Max open files")):
        value = re.search(r"^%s\s+\S+\s+(\S+)" % title, text, re.MULTILINE).group(1)
        hard[name] = None if value == "unlimited" else int(value)
    return hard


def python_version(module, interpreter):
    status, text, _words = module.run_command([interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    return text.strip() if status == 0 else ""


def is_running(program):
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as stream:
                if stream.read().strip() == program:
                    return True
        except OSError:  # the process ended while we looked
            continue
    return False


def main():
    module = AnsibleModule(
        argument_spec={
            "prefix": {"type": "path", "required": True},
            "python": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    existing = module.params["prefix"]
    while not os.path.isdir(existing):
        existing = os.path.dirname(existing)
    processor = cpu()
    cards = gpus(module)
    version = python_version(module, module.params["python"])
    kind = [platform.machine(), version, platform.libc_ver()[1], *processor["flags"], *sorted(set(cards))]
    node = {
        "addresses": addresses(module),
        "all_addresses": all_addresses(module),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "cpu": processor["model"],
        "free_bytes": shutil.disk_usage(existing).free,
        "glibc": platform.libc_ver()[1],
        "gpus": cards,
        "host_keys": host_keys(),
        "hostname": platform.node(),
        "kind": hashlib.sha256("\n".join(kind).encode()).hexdigest()[:12],
        "limits": limits(),
        "os": os_release(),
        "python": version,
        "python_apt": os.path.exists("/usr/lib/python3/dist-packages/apt_pkg.pyi")
        or bool(glob.glob("/usr/lib/python3/dist-packages/apt_pkg*.so")),
        "slurm": is_running("slurmd"),
        "systemd": os.path.isdir("/run/systemd/system"),
    }
    module.exit_json(changed=False, node=node)


if __name__ == "__main__":
    main()
