"""The folder that a local cluster is known by: inventory, keys, known hosts, and an ssh_config."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trackside.errors import InputError

HEADER = "# Written by `trackside local up`; `trackside local down` removes it, and changes made here are lost.\n"
FILES = ("hosts.yml", "known_hosts", "ssh_config", "id_ed25519", "id_ed25519.pub")
KEYS = ".keys"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
ADMIN_ID = 1000


@dataclass(frozen=True)
class Node:
    """One node of a local cluster."""

    name: str
    address: str


def is_ours(directory: Path) -> bool:
    hosts = directory / "hosts.yml"
    return (directory / KEYS).is_dir() or (hosts.is_file() and hosts.read_text().startswith(HEADER))


def refuse_foreign(directory: Path) -> None:
    """InputError where the folder holds files under our names that we have not written."""
    taken = [name for name in FILES if (directory / name).exists()]
    if taken and not is_ours(directory):
        raise InputError(f"{directory} already holds {', '.join(taken)}, not written by `local up`", "name another one")


def host_key(directory: Path, node: str) -> Path:
    return directory / KEYS / node


def ensure_key(private: Path, comment: str) -> bool:
    """Make an ed25519 key pair where one of its halves is missing; True where it was made."""
    public = private.with_name(f"{private.name}.pub")
    if private.exists() and public.exists():
        return False
    private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private.unlink(missing_ok=True)
    public.unlink(missing_ok=True)
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(private)]
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return True


def public_half(private: Path) -> str:
    return private.with_name(f"{private.name}.pub").read_text().strip()


def node_files(directory: Path, node: Node, *, fresh: bool) -> bytes:
    """A tar of what makes an image this node; `/etc/hosts` only in a fresh one, for setup adds to it."""
    key = host_key(directory, node.name)
    files = {
        "etc/ssh/ssh_host_ed25519_key": (0o600, 0, key.read_bytes()),
        "etc/ssh/ssh_host_ed25519_key.pub": (0o644, 0, f"{public_half(key)}\n".encode()),
        "home/admin/.ssh/authorized_keys": (0o600, ADMIN_ID, f"{public_half(directory / 'id_ed25519')}\n".encode()),
    }
    if fresh:
        files["etc/hosts"] = (0o644, 0, f"127.0.0.1\tlocalhost\n{node.address}\t{node.name}\n".encode())
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo("home/admin/.ssh")
        folder.type, folder.mode, folder.uid, folder.gid = tarfile.DIRTYPE, 0o700, ADMIN_ID, ADMIN_ID
        tar.addfile(folder)
        for name, (mode, owner, data) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.uid, entry.gid = len(data), mode, owner, owner
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def extra_certificates(folder: Path = CERTIFICATES) -> list[str]:
    """The certificates that this machine trusts beyond its distribution's: nodes go out by the same way."""
    return sorted(str(path) for path in folder.rglob("*.crt"))


def render_hosts(nodes: Sequence[Node], slots: int, public_key: str, certificates: Sequence[str]) -> str:
    variables: dict[str, Any] = {
        "ansible_user": "admin",
        "ansible_ssh_private_key_file": "{{ inventory_dir }}/id_ed25519",
        # Quoted twice: Ansible takes the outer quotes away, ssh the inner ones.
        "ansible_ssh_common_args": "-o 'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts\"'"
        " -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
        "trackside_stack": "cpu",
        "training_user_authorized_keys": [public_key],
    }
    if certificates:
        variables["ca_certificates_extra"] = list(certificates)
    hosts = {node.name: {"ansible_host": node.address, "slots": slots} for node in nodes}
    document = {"nodes": {"hosts": hosts, "vars": variables}}
    return HEADER + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=1000)


def render_known_hosts(nodes: Sequence[Node], host_keys: Sequence[str]) -> str:
    pairs = zip(nodes, host_keys, strict=True)
    return "".join(f"{node.name},{node.address} {' '.join(key.split()[:2])}\n" for node, key in pairs)


def render_ssh_config(nodes: Sequence[Node], directory: Path) -> str:
    blocks = "".join(f"Host {node.name}\n  HostName {node.address}\n" for node in nodes)
    return f"""{HEADER}{blocks}Host {" ".join(node.name for node in nodes)}
  User admin
  IdentityFile "{directory}/id_ed25519"
  IdentitiesOnly yes
  UserKnownHostsFile "{directory}/known_hosts"
  StrictHostKeyChecking yes
"""


def write(directory: Path, nodes: Sequence[Node], slots: int) -> bool:
    """Write what differs; True where anything did. The keys must be there."""
    keys = [public_half(host_key(directory, node.name)) for node in nodes]
    contents = {
        "hosts.yml": render_hosts(nodes, slots, public_half(directory / "id_ed25519"), extra_certificates()),
        "known_hosts": render_known_hosts(nodes, keys),
        "ssh_config": render_ssh_config(nodes, directory),
    }
    changed = False
    for name, content in contents.items():
        path = directory / name
        if not path.is_file() or path.read_text() != content:
            path.write_text(content)
            changed = True
    _hand_over(directory)
    return changed


def read(directory: Path) -> list[Node]:
    """The nodes that the folder's inventory names; none where it is missing."""
    path = directory / "hosts.yml"
    if not path.is_file() or not is_ours(directory):
        return []
    hosts = yaml.safe_load(path.read_text())["nodes"]["hosts"]
    return [Node(name, variables["ansible_host"]) for name, variables in hosts.items()]


def remove(directory: Path) -> bool:
    """Remove exactly what `write` and `ensure_key` wrote, and the folder where nothing else is in it."""
    if not is_ours(directory):
        return False
    for name in FILES:
        (directory / name).unlink(missing_ok=True)
    shutil.rmtree(directory / KEYS, ignore_errors=True)
    if not any(directory.iterdir()):
        directory.rmdir()
    return True


def _hand_over(directory: Path) -> None:
    """Give the folder to the person behind sudo, who goes on without it."""
    if "SUDO_UID" not in os.environ or os.geteuid() != 0:
        return
    for path in (directory, *(directory / name for name in FILES), *(directory / KEYS).rglob("*"), directory / KEYS):
        os.chown(path, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))
