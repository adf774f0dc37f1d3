"""The cluster as one value: what the inventory says, completed by what the nodes said."""

from __future__ import absolute_import, division, print_function

import ipaddress
import re
from pathlib import Path

from ansible.errors import AnsibleFilterError

BLOCKS = "▁▂▃▄▅▆▇█"
NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")


def inventory_problems(hostvars, nodes, heads):
    """Return what is wrong with the inventory, one sentence each, before any node is touched.

    `hostvars` are Ansible's, `nodes` the names of the group `nodes`, `heads` those of the group `head`.
    """
    if not nodes:
        return ["the group `nodes` is empty or missing: list the hosts that train under `nodes: hosts:`"]
    problems = []
    seen = {}
    for name in nodes:
        if not NAME.match(name):
            problems.append(
                f"{name}: not a host name that a hostfile can carry: use letters, digits, `-` and `.`; "
                "put a user, a port or an address into ansible_user, ansible_port and ansible_host"
            )
        variables = hostvars[name]
        place = (str(variables.get("ansible_host", name)), int(variables.get("ansible_port") or 22))
        if place in seen:
            problems.append(f"{name} and {seen[place]} have the same address {place[0]} port {place[1]}: remove one")
        seen.setdefault(place, name)
        slots = variables.get("slots")
        if slots is not None and (not str(slots).isdigit() or int(slots) < 1):
            problems.append(f"{name}: slots is {slots!r}, it has to be a whole number from 1 on")
    if len(heads) > 1:
        problems.append(f"the group `head` holds {', '.join(heads)}: keep one")
    problems += [
        f"{name} is in the group `head` but not in `nodes`: add it to `nodes`"
        for name in heads[:1]
        if name not in nodes
    ]
    return problems


def cluster_model(hostvars, nodes, head):
    """Return the cluster: `order` (rank order, head first), `head`, `fabric`, `slots`, `world_size`.

    `fabric` maps each node to its address and interface on the network that the ranks use
    (interface is empty for a node that this play did not reach).
    Raises AnsibleFilterError where that network or the slots cannot be told.
    """
    order = [head, *[name for name in nodes if name != head]]
    known = {name: hostvars[name].get("trackside_node") for name in order}
    subnet = _shared_subnet(hostvars, order, known)
    fabric = {name: _on_fabric(name, hostvars[name], known[name], subnet) for name in order}
    doubles = {}
    for name in order:
        other = doubles.setdefault(fabric[name]["address"], name)
        if other != name:
            raise AnsibleFilterError(
                f"{name} and {other} both have the fabric address {fabric[name]['address']}: set fabric_address"
            )
    slots = {name: _slots(name, hostvars[name], known[name]) for name in order}
    return {
        "order": order,
        "head": head,
        "fabric": fabric,
        "slots": slots,
        "world_size": sum(slots.values()),
    }


def _networks(node):
    return {ipaddress.ip_interface(f"{entry['address']}/{entry['prefix']}").network for entry in node["addresses"]}


def _shared_subnet(hostvars, order, known):
    """Return the one subnet that all reached nodes share, None where each node says its own or one is alone."""
    asking = [
        name
        for name in order
        if known[name] and not hostvars[name].get("fabric_address") and not hostvars[name].get("fabric_interface")
    ]
    if not asking or len(order) == 1:
        return None
    shared = set.intersection(*[_networks(known[name]) for name in asking])
    if len(shared) == 1:
        return shared.pop()
    if not shared:
        have = "; ".join(f"{n} has {', '.join(a['address'] for a in known[n]['addresses'])}" for n in asking)
        raise AnsibleFilterError(f"the nodes share no subnet ({have}): set fabric_address for each node")
    choices = ", ".join(sorted(str(network) for network in shared))
    raise AnsibleFilterError(f"the nodes share several subnets ({choices}): set fabric_interface or fabric_address")


def _on_fabric(name, variables, node, subnet):
    address = variables.get("fabric_address")
    interface = variables.get("fabric_interface")
    if not node:
        address = address or variables.get("ansible_host", name)
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise AnsibleFilterError(
                f"{name} is outside of --limit and {address} is no address: set fabric_address, or leave out --limit"
            ) from None
        return {"address": address, "interface": interface or ""}
    for entry in node["addresses"]:
        here = ipaddress.ip_address(entry["address"])
        if (
            entry["address"] == address
            or (not address and entry["interface"] == interface)
            or (not address and not interface and (subnet is None or here in subnet))
        ):
            return {"address": entry["address"], "interface": entry["interface"]}
    have = ", ".join(f"{entry['address']} on {entry['interface']}" for entry in node["addresses"]) or "none"
    raise AnsibleFilterError(f"{name} has no address {address or interface or subnet}: it has {have}")


def _slots(name, variables, node):
    if variables.get("slots") is not None:
        return int(variables["slots"])
    if not node:
        raise AnsibleFilterError(f"{name} is outside of --limit and has no slots in the inventory: set `slots` for it")
    if node["gpus"]:
        return len(node["gpus"])
    return 1


def run_nodes(cluster):
    """Return the cluster's nodes in rank order, each with name, slots, address and interface."""
    return [{"name": name, "slots": cluster["slots"][name], **cluster["fabric"][name]} for name in cluster["order"]]


def known_hosts_lines(host_keys, addresses, ports):
    """Return known_hosts lines: each node's keys, valid for its name and its address.

    `host_keys` maps node names to lists of `type key`, `addresses` to addresses, `ports` to ssh ports.
    """
    lines = []
    for name, keys in host_keys.items():
        port = int(ports.get(name, 22))
        names = [name, addresses[name]] if port == 22 else [f"[{n}]:{port}" for n in (name, addresses[name])]
        lines += [f"{','.join(names)} {key}" for key in keys]
    return lines


def mesh_key_lines(key, sources, extra_keys):
    """Return authorized_keys lines: the mesh's key, from the head only and without forwarding, then the others."""
    allowed = ",".join(source for source in sources if "%" not in source)
    mesh = [f'from="{allowed}",no-agent-forwarding,no-port-forwarding,no-X11-forwarding {key.strip()}'] if key else []
    return [*mesh, *extra_keys]


def read_file(path):
    """Return the text of a file on the controller; raises AnsibleFilterError with its path."""
    try:
        return Path(path).expanduser().read_text()
    except OSError as error:
        raise AnsibleFilterError(f"cannot read {path} on the controller: {error.strerror}") from error


def sparkline(values, width=40):
    """Return `values` as a line of at most `width` block characters, each the mean of its share."""
    share = max(1.0, len(values) / width)
    means = []
    for column in range(min(width, len(values))):
        part = values[int(column * share) : max(int((column + 1) * share), int(column * share) + 1)]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(BLOCKS[round((value - low) * scale)] for value in means)


def run_summary(collected, name, run_dir, logs):
    """Return what a person wants to know of a run that has ended, as lines of text."""
    state, result = collected["state"], collected["result"]
    rows = [("run", f"{name} {state.get('state', 'lost')}: {state.get('reason', 'no word of its end')}")]
    if result.get("world_size"):
        hosts = dict.fromkeys(result.get("hosts", []))
        rows.append(("world size", f"{result['world_size']} on {', '.join(hosts)}"))
    losses = result.get("losses") or []
    if losses:
        rows.append(("loss", f"{losses[0]:.4f} {sparkline(losses)} {losses[-1]:.4f} in {len(losses)} steps"))
    if result.get("accuracy") is not None:
        rows.append(("accuracy", f"{result['accuracy']:.4f} on held-out data"))
    if result.get("checkpoint"):
        rows.append(("checkpoint", f"{result['checkpoint']} on every node"))
    rows.append(("logs", f"{logs} here, {run_dir} on the nodes"))
    if state.get("state") == "succeeded" and result.get("checkpoint"):
        rows.append(("next", f"train on from there: add `-- --resume {result['checkpoint']}`"))
    elif state.get("state") != "succeeded":
        rows.append(("next", f"read {logs}/logs, the rank that failed first is named above"))
    return "\n".join(f"  {title:<11} {text}" for title, text in rows)


def differences(values, others):
    """Return the absolute differences of two equally long lists of numbers."""
    return [abs(a - b) for a, b in zip(values, others, strict=True)]


class FilterModule:
    """The filters."""

    def filters(self):
        return {
            "trackside_differences": differences,
            "trackside_cluster_model": cluster_model,
            "trackside_known_hosts_lines": known_hosts_lines,
            "trackside_mesh_key_lines": mesh_key_lines,
            "trackside_read_file": read_file,
            "trackside_run_nodes": run_nodes,
            "trackside_run_summary": run_summary,
            "trackside_inventory_problems": inventory_problems,
        }
