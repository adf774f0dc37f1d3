"""A local cluster's life: up, down, status, and the image that setup has been through."""

from __future__ import annotations

import fcntl
import json
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Literal

from trackside.errors import InputError, NodeError
from trackside.local import image as images
from trackside.local import inventory
from trackside.local.engine import (
    SYSTEMD_UP,
    Engine,
    Say,
    any_engine,
    cache_directory,
    find_engine,
    require,
    systemd_argv,
    tail,
)
from trackside.local.inventory import Node

LABEL = "org.trackside"
FIRST_ADDRESS = 11
MOST_NODES = 200
BOOT_SECONDS = 60
# Measured: with 128 instances, 25 nodes came up whole.
INOTIFY_PER_NODE = 5
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up."""

    name: str
    nodes: tuple[Node, ...]
    inventory: Path
    changed: bool


@dataclass(frozen=True)
class NodeStatus:
    """What one node is doing; `systemd` is empty where it does not answer."""

    name: str
    address: str
    state: Literal["running", "stopped", "missing"]
    systemd: str
    sshd: bool


@dataclass(frozen=True)
class Container:
    """A node's container as the engine has it."""

    node: Node
    state: str
    image: str
    directory: str


@dataclass(frozen=True)
class Network:
    """A network of the engine."""

    subnets: tuple[IPv4Network, ...]
    labels: dict[str, str]


def network_name(cluster: str) -> str:
    return f"trackside-{cluster}"


def container_name(cluster: str, node: str) -> str:
    return f"trackside-{cluster}-{node}"


def node_number(node: str) -> int:
    return int(node.removeprefix("node"))


def network_argv(engine: Engine, cluster: str, subnet: IPv4Network, *, dns: bool) -> list[str]:
    no_dns = ["--disable-dns"] if engine.program == "podman" and not dns else []
    labels = ["--label", f"{LABEL}.cluster={cluster}", "--label", f"{LABEL}.dns={str(dns).lower()}"]
    return ["network", "create", "--subnet", str(subnet), *labels, *no_dns, network_name(cluster)]


def hardware_address(address: str) -> str:
    """Return a locally administered MAC that a node keeps when it restarts: its neighbours remember it for a minute."""
    return "02:74:" + IPv4Address(address).packed.hex(":")


def create_argv(engine: Engine, cluster: str, node: Node, image: str, directory: Path) -> list[str]:
    labels = {"cluster": cluster, "node": node.name, "address": node.address, "image": image, "directory": directory}
    # Podman would copy this machine's /etc/hosts and mount it, so that it could not be replaced; Docker does neither.
    hosts = ["--no-hosts"] if engine.program == "podman" else []
    return [
        "create", "--name", container_name(cluster, node.name), "--hostname", node.name,
        "--env", f"HOSTNAME={node.name}",  # a prepared image brings the name of the node that it was
        *(word for key, value in labels.items() for word in ("--label", f"{LABEL}.{key}={value}")),
        "--network", network_name(cluster), "--network-alias", node.name, "--ip", node.address,
        "--mac-address", hardware_address(node.address), "--shm-size", "512m",
        *hosts, *systemd_argv(engine), image, "/sbin/init",
    ]  # fmt: skip


def copy_argv(engine: Engine, container: str) -> list[str]:
    """`cp` of a tar on standard input whose owners and modes are kept."""
    keep = ["--archive=false"] if engine.program == "podman" else []
    return ["cp", *keep, "-", f"{container}:/"]


def parse_networks(inspected: str) -> dict[str, Network]:
    """Read `network inspect` of either engine."""
    networks: dict[str, Network] = {}
    for entry in json.loads(inspected):
        if "name" in entry:
            name, labels = entry["name"], entry.get("labels")
            subnets = [part["subnet"] for part in entry.get("subnets") or []]
        else:
            name, labels = entry["Name"], entry.get("Labels")
            subnets = [part["Subnet"] for part in entry["IPAM"].get("Config") or []]
        networks[name] = Network(tuple(IPv4Network(text) for text in subnets if ":" not in text), labels or {})
    return networks


def parse_routes(table: str) -> list[IPv4Network]:
    """Read /proc/net/route, whose addresses are in the machine's byte order (little endian), without the default."""
    networks = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        address, mask = (IPv4Address(int.from_bytes(bytes.fromhex(fields[i]), "little")) for i in (1, 7))
        if int(mask):
            networks.append(IPv4Network((int(address), int(mask).bit_count())))
    return networks


def free_subnet(used: Iterable[IPv4Network]) -> IPv4Network:
    taken = list(used)
    for third in range(256):
        subnet = IPv4Network(f"10.89.{third}.0/24")
        if not any(subnet.overlaps(other) for other in taken):
            return subnet
    raise NodeError("every network of 10.89.0.0/16 is in use", "remove local clusters with `trackside local down`")


def addresses(subnet: IPv4Network, count: int) -> list[Node]:
    return [Node(f"node{i + 1}", str(subnet.network_address + FIRST_ADDRESS + i)) for i in range(count)]


def up(
    name: str,
    *,
    nodes: int,
    slots: int,
    image: Literal["bare", "prepared"],
    directory: Path,
    say: Say,
    dns: bool = True,
    prepared_key: str = "",
) -> Cluster:
    """Make the cluster be there, whole; a healthy one is left as it is.

    `prepared_key` is the key that `prepare` was given. Raises InputError for what cannot be done, NodeError with the
    node's last words where one does not come up.
    """
    _validate(name, nodes, slots, say)
    require("ssh-keygen", "openssh-client")
    directory = directory.expanduser().resolve()
    inventory.refuse_foreign(directory)
    with _alone():
        tag = ""

        def chosen(engine: Engine) -> str:
            nonlocal tag
            tag = tag or _image(engine, image, prepared_key, say)
            return tag

        engine = find_engine(chosen, say)
        tag = chosen(engine)
        found = _containers(engine, name)
        _refuse_mismatch(name, nodes, directory, found)
        subnet, made = _ensure_network(engine, name, dns=dns)
        if made:
            # Containers of a network that is gone cannot come back: their addresses went with it.
            for old in found:
                engine.remove_container(container_name(name, old))
            found = {}
        wanted = addresses(subnet, nodes)
        changed = made
        rekeyed = inventory.ensure_key(directory / "id_ed25519", f"trackside local cluster {name}")
        for node in wanted:
            new_key = inventory.ensure_key(inventory.host_key(directory, node.name), node.name) or rekeyed
            did = _ensure_node(engine, name, node, tag, directory, found=found.get(node.name), new_key=new_key)
            if did:
                say(f"{node.name} {did} at {node.address}")
            changed = bool(did) or changed
        changed = inventory.write(directory, wanted, slots) or changed
        _wait(engine, name, wanted)
    return Cluster(name, tuple(wanted), directory / "hosts.yml", changed)


def down(name: str, directory: Path, say: Say, *, images: bool = False) -> bool:
    """Remove what `up` made, and only that; True where there was anything."""
    directory = directory.expanduser().resolve()
    removed = False
    with _alone():
        if engine := any_engine():
            found = _containers(engine, name)
            _refuse_other_folder(name, directory, found)
            for node in found:
                engine.remove_container(container_name(name, node))
                say(f"{node} removed")
                removed = True
            network = _networks(engine).get(network_name(name))
            if network and network.labels.get(f"{LABEL}.cluster") == name:
                engine.run(["network", "rm", network_name(name)])
                removed = True
            if images:
                _remove_images(engine, say)
        if inventory.remove(directory):
            say(f"{directory} removed")
            removed = True
    return removed


def status(name: str, directory: Path) -> list[NodeStatus]:
    """Every node that the inventory names or the engine holds."""
    directory = directory.expanduser().resolve()
    engine = any_engine()
    found = _containers(engine, name) if engine else {}
    nodes = {node.name: node for node in inventory.read(directory)}
    nodes.update({key: container.node for key, container in found.items()})
    result = []
    for node in sorted(nodes.values(), key=lambda node: node_number(node.name)):
        container = found.get(node.name)
        if not (engine and container and container.state == "running"):
            state: Literal["stopped", "missing"] = "stopped" if container else "missing"
            result.append(NodeStatus(node.name, node.address, state, "", sshd=False))
            continue
        systemd = engine.systemd_state(container_name(name, node.name))
        result.append(NodeStatus(node.name, node.address, "running", systemd, sshd=_sshd_answers(node.address)))
    return result


def prepare(directory_base: Path, run_setup: Callable[[Path], None], key: str, say: Say) -> str:
    """Make the prepared image where it is missing, and return its tag.

    `run_setup` is handed the inventory of a cluster of one bare node, which is gone afterwards, whatever happens.
    """
    base = directory_base.expanduser().resolve()
    tag = images.prepared_tag(key)
    if (engine := any_engine()) and engine.has_image(tag):
        return tag
    name, directory = f"prepare-{key}", base / ".prepare"
    down(name, directory, say)
    try:
        cluster = up(name, nodes=1, slots=1, image="bare", directory=directory, say=say)
        run_setup(cluster.inventory)
        engine = find_engine(lambda _: images.bare_tag(), say)
        container = container_name(name, "node1")
        engine.run(["exec", container, "sh", "-c", images.FORGET])
        # Under cgroup v1 systemd never learns that a user's manager is gone and waits for it; all else is done by then.
        engine.run(["stop", "--time", "10", container])
        say(f"saving the prepared node as {tag}")
        engine.run(images.commit_argv(container, tag), seconds=900)
    finally:
        down(name, directory, say)
        if base.is_dir() and not any(base.iterdir()):
            base.rmdir()
    return tag


@contextmanager
def _alone() -> Iterator[None]:
    """One at a time on this machine: two would pick the same subnet, or build the same image twice."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _validate(name: str, nodes: int, slots: int, say: Say) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name):
        raise InputError(f"a cluster cannot be named {name!r}", "use lower-case letters, digits and hyphens")
    if not 1 <= nodes <= MOST_NODES:
        raise InputError(f"a local cluster has 1 to {MOST_NODES} nodes, not {nodes}")
    if slots < 1:
        raise InputError(f"a node has at least one slot, not {slots}")
    if INOTIFY_LIMIT.is_file() and (limit := int(INOTIFY_LIMIT.read_text())) < nodes * INOTIFY_PER_NODE:
        say(f"{nodes} nodes need more than the {limit} inotify instances of this machine; should some not come up:")
        say(f"  sudo sysctl fs.inotify.max_user_instances={nodes * INOTIFY_PER_NODE * 2}")


def _image(engine: Engine, kind: Literal["bare", "prepared"], key: str, say: Say) -> str:
    if kind == "bare":
        return images.ensure_bare(engine, say)
    tag = images.prepared_tag(key)
    if not engine.has_image(tag):
        raise InputError(f"there is no image {tag}", "make it with `trackside local prepare`, or use the bare image")
    return tag


def _containers(engine: Engine, cluster: str) -> dict[str, Container]:
    ids = engine.run(["ps", "--all", "--quiet", "--filter", f"label={LABEL}.cluster={cluster}"]).split()
    if not ids:
        return {}
    entries = [_container(entry) for entry in json.loads(engine.run(["inspect", "--type", "container", *ids]))]
    return {container.node.name: container for container in entries}


def _container(entry: dict[str, Any]) -> Container:
    labels = entry["Config"]["Labels"]
    node = Node(labels[f"{LABEL}.node"], labels[f"{LABEL}.address"])
    return Container(node, entry["State"]["Status"], labels[f"{LABEL}.image"], labels[f"{LABEL}.directory"])


def _networks(engine: Engine) -> dict[str, Network]:
    names = engine.run(["network", "ls", "--quiet"]).split()
    return parse_networks(engine.run(["network", "inspect", *names])) if names else {}


def _refuse_other_folder(cluster: str, directory: Path, found: dict[str, Container]) -> None:
    for container in found.values():
        if container.directory != str(directory):
            raise InputError(f"cluster {cluster} has its inventory in {container.directory}", "name that folder")


def _refuse_mismatch(cluster: str, nodes: int, directory: Path, found: dict[str, Container]) -> None:
    _refuse_other_folder(cluster, directory, found)
    if (have := max((node_number(node) for node in found), default=0)) > nodes:
        raise InputError(f"cluster {cluster} has {have} nodes, more than {nodes}", "use `trackside local down` first")


def _ensure_network(engine: Engine, cluster: str, *, dns: bool) -> tuple[IPv4Network, bool]:
    if engine.program == "docker" and not dns:
        raise InputError("Docker's networks cannot do without names", "use podman for a cluster without DNS")
    networks = _networks(engine)
    if own := networks.get(network_name(cluster)):
        if own.labels.get(f"{LABEL}.dns") != str(dns).lower():
            raise InputError(f"cluster {cluster}'s network was made otherwise", "use `trackside local down` first")
        return own.subnets[0], False
    routes = parse_routes(Path("/proc/net/route").read_text())
    subnet = free_subnet([*routes, *(subnet for network in networks.values() for subnet in network.subnets)])
    engine.run(network_argv(engine, cluster, subnet, dns=dns))
    return subnet, True


def _ensure_node(
    engine: Engine, cluster: str, node: Node, image: str, directory: Path, *, found: Container | None, new_key: bool
) -> str:
    """Bring one node to life and say in a word what that took; "" where nothing was needed."""
    name = container_name(cluster, node.name)
    if found and found.state == "created":
        # Its files may not have been copied in: it was interrupted before its first start.
        engine.remove_container(name)
        found = None
    if not found:
        engine.run(create_argv(engine, cluster, node, image, directory))
        engine.run(copy_argv(engine, name), data=inventory.node_files(directory, node, fresh=True))
        engine.run(["start", name])
        return "made"
    did = ""
    if found.state == "paused":
        engine.run(["unpause", name])
        did = "resumed"
    elif found.state != "running":
        engine.run(["start", name])
        did = "started"
    if new_key:
        engine.run(copy_argv(engine, name), data=inventory.node_files(directory, node, fresh=False))
        engine.run(["exec", name, "systemctl", "restart", "ssh"])
        did = "given new keys"
    return did


def _sshd_answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _wait(engine: Engine, cluster: str, nodes: Iterable[Node]) -> None:
    end = time.monotonic() + BOOT_SECONDS
    for node in nodes:
        container = container_name(cluster, node.name)
        while True:
            systemd, sshd = engine.systemd_state(container), _sshd_answers(node.address)
            if systemd in SYSTEMD_UP and sshd:
                break
            if time.monotonic() > end:
                journal = engine.call(["exec", container, "journalctl", "--no-pager", "--lines", "15"])
                raise NodeError(
                    f"{node.name} ({node.address}) did not come up within {BOOT_SECONDS} s: "
                    f"systemd {systemd or 'no answer'}, sshd {'answers' if sshd else 'does not answer'}\n"
                    f"{tail(journal.stdout or journal.stderr, 15)}",
                    "run the command again, which heals; or `trackside local down` and start anew",
                )
            time.sleep(0.1)


def _remove_images(engine: Engine, say: Say) -> None:
    listed = engine.run(["images", "--format", "{{.Repository}}:{{.Tag}}"]).split()
    # Prepared images first: they stand on the bare one.
    for tag in sorted((tag for tag in listed if tag.startswith(f"{images.REPOSITORY}:")), reverse=True):
        # Not by force, which would take other clusters' containers with it.
        kept = engine.call(["rmi", tag]).returncode
        say(f"{tag} kept: a container still uses it" if kept else f"{tag} removed")
