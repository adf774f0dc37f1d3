"""What a stack is, which nodes it fits, and what a run of it needs."""

from __future__ import absolute_import, division, print_function

import hashlib
import re
from pathlib import Path

from ansible.errors import AnsibleFilterError

FIELDS = {
    "name": str,
    "python": list,
    "architectures": list,
    "index": str,
    "requirements": list,
    "versions": dict,
    "openmpi": str,
    "sources": list,
    "ops": list,
    "build": dict,
    "environment": dict,
}
CUDA_FIELDS = {"version": str, "toolkit": str, "lowest_driver": str, "capabilities": list}
TOOLKITS = ("wheels", "system")
SEAL = re.compile(r"^#.*, sha256 ([0-9a-f]{64})\n")


def stack(data, path):
    """Return a stack's data, checked; raises AnsibleFilterError with the file and every field that is wrong."""
    if not isinstance(data, dict):
        raise AnsibleFilterError(f"{path} is no stack: it has to be a mapping with {', '.join(FIELDS)}")
    problems = _wrong(data, FIELDS, {"cuda"})
    if data.get("name") != Path(path).stem:
        problems.append(f"name is {data.get('name')!r}, the file's name says {Path(path).stem!r}")
    cuda = data.get("cuda")
    if isinstance(cuda, dict):
        problems += [f"cuda: {problem}" for problem in _wrong(cuda, CUDA_FIELDS, set())]
        if cuda.get("toolkit") not in TOOLKITS:
            problems.append(f"cuda: toolkit is {cuda.get('toolkit')!r}, it has to be {' or '.join(TOOLKITS)}")
    elif cuda is not None:
        problems.append("cuda has to be a mapping")
    if problems:
        raise AnsibleFilterError(f"{path}: {'; '.join(problems)}")
    return {**data, "cuda": cuda}


def _wrong(data, fields, further):
    missing = [f"{name} is missing" for name in fields if name not in data]
    unknown = [f"{name} is unknown" for name in data if name not in fields and name not in further]
    typed = [
        f"{name} has to be a {kind.__name__}" + (", in quotes" if kind is str else "")
        for name, kind in fields.items()
        if name in data and not isinstance(data[name], kind)
    ]
    return missing + unknown + typed


def requirement_lines(text):
    """Return the requirements of a requirements.txt; raises AnsibleFilterError for pip's options: they have no lock."""
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    options = [line for line in lines if line.startswith("-")]
    if options:
        raise AnsibleFilterError(f"{options[0]!r} in the requirements is an option of pip: write packages alone")
    return [line for line in lines if line]


def lock_problem(lock, name):
    """Return what is wrong with a stack's lock as one sentence, empty when it is as `resolve` made it."""
    again = f"make it anew: `trackside stack resolve {name}` (playbooks/resolve.yml)"
    if not lock:
        return f"the stack {name} has no lock: {again}"
    seal = SEAL.match(lock)
    if not seal:
        return f"the first line of the lock of {name} does not say what made it: {again}"
    if hashlib.sha256(lock[seal.end() :].encode()).hexdigest() != seal.group(1):
        return f"the lock of {name} was edited by hand: {again}"
    return ""


def numbers(version):
    """Return a version as a tuple of its numbers, which compares as versions do."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def runs_on(capability, built):
    """Say whether code built for the compute capabilities `built` runs on a GPU of `capability`.

    Binary code runs on its own major, from its own minor on (CUDA C++ Programming Guide, "Binary Compatibility").
    """
    major, minor = numbers(capability)[:2]
    return any(numbers(one)[0] == major and numbers(one)[1] <= minor for one in built)


def stack_refusals(data, node, python, source):
    """Return why the stack cannot be had on this node, one sentence each.

    `node` is what trackside_node_facts read, `python` the interpreter's path, `source` where packages come from.
    """
    refusals = []
    name = data["name"]
    if source != "existing" and node["python"] not in data["python"]:
        refusals.append(
            f"{python} is Python {node['python'] or 'of no version'}, the stack {name} is locked for "
            f"{' and '.join(data['python'])}: set trackside_python to one of these"
        )
    if node["architecture"] not in data["architectures"]:
        refusals.append(
            f"its processor is {node['architecture']}, the stack {name} is locked for "
            f"{' and '.join(data['architectures'])}"
        )
    return refusals + (_gpu_refusals(data, node) if data["cuda"] else [])


def _gpu_refusals(data, node):
    cuda, name = data["cuda"], data["name"]
    if not node["gpus"]:
        words = node.get("driver", {}).get("message") or "nvidia-smi names none"
        return [
            f"it has no GPU that works ({words}), the stack {name} needs one: mend the driver, or use the stack cpu"
        ]
    refusals = []
    driver = node.get("driver", {}).get("loaded") or ""
    if driver and numbers(driver) < numbers(cuda["lowest_driver"]):
        refusals.append(
            f"its driver is {driver}, CUDA {cuda['version']} of the stack {name} needs {cuda['lowest_driver']} or "
            "newer: install it, set gpu_driver_mode=install, or choose a stack of an older CUDA"
        )
    refusals += [
        f"its GPU has compute capability {capability}, torch of the stack {name} is built for "
        f"{', '.join(cuda['capabilities'])}"
        for capability in node.get("compute_capabilities", [])
        if not runs_on(capability, cuda["capabilities"])
    ]
    return refusals


def mixed_gpus(nodes):
    """Return a sentence when the nodes ({name: facts}) have different GPUs, else an empty one."""
    models = {name: " and ".join(sorted(set(node["gpus"]))) or "none" for name, node in nodes.items()}
    if len(set(models.values())) < 2:
        return ""
    have = ", ".join(f"{name} has {model}" for name, model in models.items())
    return f"the nodes have different GPUs ({have}): the slowest sets the pace; set trackside_mixed_gpus to allow it"


def build_switches(data, ops):
    """Return the variables of the build: the stack's own, and DeepSpeed's switch for each op."""
    return {**data["build"], **{f"DS_BUILD_{op.upper()}": "1" for op in ops or data["ops"]}}


def cuda_environment(data, env, python, capabilities):
    """Return the variables by which a compiler finds CUDA: empty for a stack without.

    `env` is the environment's path, `python` its version, `capabilities` those of the GPUs found. DeepSpeed's builder
    reads a value such as 9.0a as a number and fails, so a value inherited from the node never counts.
    """
    if not data["cuda"]:
        return {}
    version = data["cuda"]["version"]
    wheels = f"{env}/lib/python{python}/site-packages/nvidia/cu{version.split('.')[0]}"
    home = wheels if data["cuda"]["toolkit"] == "wheels" else f"/usr/local/cuda-{version}"
    return {"CUDA_HOME": home, "TORCH_CUDA_ARCH_LIST": ";".join(sorted(set(capabilities), key=numbers))}


def wheels_to_send(nodes, cluster, cached, dest):
    """Return, for each kind among `nodes` ({name: facts}), the built wheel that its nodes need.

    Each is {src, dest, sha256, nodes: [{name, address}]}; `cached` and `dest` are the folders on the controller and on
    the nodes, without the kind that ends their names.
    """
    found = []
    for kind in sorted({node["kind"] for node in nodes.values()}):
        wheels = sorted(Path(f"{cached}-{kind}").expanduser().glob("*.whl"))
        if wheels:
            found.append(
                {
                    "src": str(wheels[0]),
                    "dest": f"{dest}-{kind}/{wheels[0].name}",
                    "sha256": hashlib.sha256(wheels[0].read_bytes()).hexdigest(),
                    "nodes": [
                        {"name": name, "address": cluster["fabric"][name]["address"]}
                        for name, node in nodes.items()
                        if node["kind"] == kind
                    ],
                }
            )
    return found


class FilterModule:
    """The filters."""

    def filters(self):
        return {
            "trackside_build_switches": build_switches,
            "trackside_cuda_environment": cuda_environment,
            "trackside_lock_problem": lock_problem,
            "trackside_mixed_gpus": mixed_gpus,
            "trackside_requirement_lines": requirement_lines,
            "trackside_stack": stack,
            "trackside_stack_refusals": stack_refusals,
            "trackside_wheels_to_send": wheels_to_send,
        }
