"""First contact: hosts, their pinned host keys, and the person's key on them."""

from __future__ import annotations

import base64
import getpass
import hashlib
import re
import shlex
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import yaml

from trackside.errors import InputError, NodeError

NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")
WORD = re.compile(r"^(?:(?P<name>[^=@:]+)=)?(?:(?P<user>[^@:]+)@)?(?P<address>[^@:]+)(?::(?P<port>\d+))?$")
HOSTFILE_LINE = re.compile(r"^(\S+)\s+slots=(\d+)(?:\s+max[_-]slots=\d+)?$")
SSH_PORT = 22
TIMEOUT_SECONDS = 10
COMMON = "-o 'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts\"' -o StrictHostKeyChecking=yes"


@dataclass(frozen=True)
class Host:
    """A host as the person named it."""

    name: str
    address: str
    port: int = SSH_PORT
    user: str = ""
    slots: int | None = None


@dataclass(frozen=True)
class Wanted:
    """What `trackside init` was asked for."""

    words: list[str]
    directory: Path
    from_hostfile: str
    user: str
    key: str
    ask_pass: bool
    repin: str
    yes: bool


def parse_hosts(words: list[str]) -> list[Host]:
    """Return the hosts of `[name=][user@]address[:port]`; an address without a name becomes nodeN.

    Raises InputError for a word that is none, and for a name or an address given twice.
    """
    hosts = []
    for position, word in enumerate(words, 1):
        match = WORD.match(word)
        if not match:
            raise InputError(f"{word!r} is not [name=][user@]address[:port]")
        address = match["address"]
        is_number = re.fullmatch(r"[\d.]+", address)
        name = match["name"] or (f"node{position}" if is_number else address)
        if not NAME.match(name):
            raise InputError(f"{name!r} cannot be a host name", "use letters, digits, `-` and `.`")
        hosts.append(Host(name, address, int(match["port"] or SSH_PORT), match["user"] or ""))
    return _unique(hosts)


def _unique(hosts: list[Host]) -> list[Host]:
    for key in ("name", "address"):
        seen: set[str] = set()
        for host in hosts:
            value = str(getattr(host, key)) + (f":{host.port}" if key == "address" else "")
            if value in seen:
                raise InputError(f"the {key} {value} is given twice", "remove one")
            seen.add(value)
    return hosts


def read_hostfile(path: Path) -> list[Host]:
    """Return the hosts of a DeepSpeed hostfile, refusing also what DeepSpeed 0.19 silently reads wrong."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    hosts = []
    for number, raw in enumerate(lines, 1):
        line = raw.split("#")[0].strip()
        if not line:
            continue
        match = HOSTFILE_LINE.match(line)
        if not match or int(match[2]) < 1:
            name = re.split(r"[\s:]", line)[0]
            count = re.search(r"(?:\blots|\bslots\s*|:)=?\s*(\d+)", line)
            raise InputError(
                f"{path} line {number}: {line!r} is not `HOST slots=N`",
                f"probably meant: {name} slots={count[1] if count else 'N'}",
            )
        hosts.append(Host(match[1], match[1], slots=int(match[2])))
    if not hosts:
        raise InputError(f"{path} names no host")
    return _unique(hosts)


def scan(host: Host) -> str:
    """Return the known_hosts line of the host's own key; raises NodeError in words when nothing answers."""
    where = f"{host.name} ({host.address} port {host.port})"
    try:
        connection = socket.create_connection((host.address, host.port), TIMEOUT_SECONDS)
    except socket.gaierror as error:
        raise NodeError(f"{where} does not resolve", "correct the name or give its address: name=address") from error
    except ConnectionRefusedError as error:
        raise NodeError(f"{where}: nothing speaks ssh there", "is sshd running, and is the port right?") from error
    except OSError as error:
        raise NodeError(f"{where} does not answer: {error}", "is it on, does a firewall let ssh through?") from error
    transport = paramiko.Transport(connection)
    try:
        transport.get_security_options().key_types = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-256")
        transport.start_client(timeout=TIMEOUT_SECONDS)
        key = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError) as error:
        raise NodeError(f"{where} does not speak ssh as expected: {error}", "is the port right?") from error
    finally:
        transport.close()
    names = [host.name] if host.name == host.address else [host.name, host.address]
    if host.port != SSH_PORT:
        names = [f"[{name}]:{host.port}" for name in names]
    return f"{','.join(names)} {key.get_name()} {key.get_base64()}"


def fingerprint(line: str) -> str:
    """Return a known_hosts line's fingerprint as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[2])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def install_key(host: Host, user: str, password: str, public_key: str, line: str) -> None:
    """Append the public key to the user's authorized_keys by one login with the password, as ssh-copy-id does."""
    client = _client(host, line)
    quoted = shlex.quote(public_key.strip())
    command = (
        "umask 077; mkdir -p ~/.ssh && touch ~/.ssh/authorized_keys && "
        f"{{ grep -qxF {quoted} ~/.ssh/authorized_keys || echo {quoted} >> ~/.ssh/authorized_keys; }}"
    )
    try:
        client.connect(
            host.address,
            host.port,
            user,
            password,
            timeout=TIMEOUT_SECONDS,
            allow_agent=False,
            look_for_keys=False,
        )
        _stdin, stdout, stderr = client.exec_command(command)
        if stdout.channel.recv_exit_status() != 0:
            raise NodeError(f"{host.name}: the key could not be installed: {stderr.read().decode().strip()}")
    except paramiko.AuthenticationException as error:
        raise NodeError(f"{host.name} refuses the password of {user}", "check user and password") from error
    except (paramiko.SSHException, OSError) as error:
        raise NodeError(f"{host.name}: {error}") from error
    finally:
        client.close()


def verify_key(host: Host, user: str, key: Path, line: str) -> None:
    """Log in by the key alone; raises NodeError when the node refuses it."""
    client = _client(host, line)
    try:
        client.connect(
            host.address,
            host.port,
            user,
            key_filename=str(key),
            timeout=TIMEOUT_SECONDS,
            allow_agent=False,
            look_for_keys=False,
        )
    except (paramiko.SSHException, OSError) as error:
        raise NodeError(f"{host.name} refuses the key {key}: {error}", "install it with --ask-pass") from error
    finally:
        client.close()


def _client(host: Host, line: str) -> paramiko.SSHClient:
    """Return a client that knows the host's pinned key and refuses any other."""
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    _names, kind, text = line.split()
    name = host.address if host.port == SSH_PORT else f"[{host.address}]:{host.port}"
    client.get_host_keys().add(name, kind, paramiko.PKey.from_type_string(kind, base64.b64decode(text)))
    return client


def inventory_text(hosts: list[Host], user: str, key: str) -> str:
    """Return hosts.yml."""
    entries = {}
    for host in hosts:
        entry: dict[str, object] = {"ansible_host": host.address}
        entry |= {"ansible_port": host.port} if host.port != SSH_PORT else {}
        entry |= {"ansible_user": host.user} if host.user and host.user != user else {}
        entry |= {"slots": host.slots} if host.slots else {}
        entries[host.name] = entry
    variables = {"ansible_user": user, "ansible_ssh_common_args": COMMON, "trackside_stack": "cpu"}
    variables |= {"ansible_ssh_private_key_file": key} if key else {}
    document = {"nodes": {"hosts": entries, "vars": variables}}
    text = yaml.safe_dump(document, sort_keys=False, width=1000)
    return "# Written by `trackside init`; yours from now on. The order of the hosts is the rank order.\n" + text


def repinned(text: str, line: str) -> str:
    """Return known_hosts with the lines of the same names replaced."""
    names = set(line.split(maxsplit=1)[0].split(","))
    kept = [old for old in text.splitlines() if not names & set(old.split(" ")[0].split(","))]
    return "\n".join([*kept, line]) + "\n"


def command(wanted: Wanted, say: Callable[[str], None]) -> None:
    """Do what `trackside init` was asked for; nothing is written before every host has answered."""
    if wanted.repin:
        _repin(wanted, say)
        return
    target = wanted.directory / "hosts.yml"
    if target.exists():
        raise InputError(f"{target} exists already", "edit it, or give another --directory")
    hosts = read_hostfile(Path(wanted.from_hostfile)) if wanted.from_hostfile else parse_hosts(wanted.words)
    if not hosts:
        raise InputError("no host is named", "give HOST…, or --from-hostfile")
    default = wanted.user or next((host.user for host in hosts if host.user), "") or getpass.getuser()
    hosts = [replace(host, user=host.user or default) for host in hosts]
    lines = [scan(host) for host in hosts]
    _show(hosts, lines, wanted, say)
    key = Path(wanted.key).expanduser().resolve() if wanted.key else Path()
    if wanted.ask_pass:
        key = key if wanted.key else _own_key(say)
        public = key.with_name(key.name + ".pub").read_text()
        password = getpass.getpass(f"password of {default} on the nodes: ")
        for host, line in zip(hosts, lines, strict=True):
            install_key(host, host.user, password, public, line)
            verify_key(host, host.user, key, line)
            say(f"{host.name}: the key is installed and works")
    wanted.directory.mkdir(parents=True, exist_ok=True)
    (wanted.directory / "known_hosts").write_text("\n".join(lines) + "\n")
    target.write_text(inventory_text(hosts, default, str(key) if wanted.key or wanted.ask_pass else ""))
    say(f"{target} written; next: trackside setup -i {wanted.directory}")


def _show(hosts: list[Host], lines: list[str], wanted: Wanted, say: Callable[[str], None]) -> None:
    for host, line in zip(hosts, lines, strict=True):
        say(f"{host.name}  {host.address}  {line.split()[1]}  {fingerprint(line)}")
    if not wanted.yes:
        answer = input("Are these the hosts' keys? They are pinned. [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            raise InputError("nothing was written")


def _own_key(say: Callable[[str], None]) -> Path:
    key = Path("~/.ssh/id_ed25519").expanduser()
    if not key.exists():
        key.parent.mkdir(mode=0o700, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        say(f"{key} made")
    return key


def _repin(wanted: Wanted, say: Callable[[str], None]) -> None:
    target, known = wanted.directory / "hosts.yml", wanted.directory / "known_hosts"
    if not target.exists():
        raise InputError(f"{target}: there is no such inventory", "give its folder with --directory")
    nodes = yaml.safe_load(target.read_text())["nodes"]["hosts"]
    if wanted.repin not in nodes:
        raise InputError(f"{wanted.repin} is not in {target}", f"it has {', '.join(nodes)}")
    entry = nodes[wanted.repin] or {}
    host = Host(wanted.repin, entry.get("ansible_host", wanted.repin), entry.get("ansible_port", SSH_PORT))
    line = scan(host)
    _show([host], [line], wanted, say)
    known.write_text(repinned(known.read_text() if known.exists() else "", line))
    say(f"{host.name}'s key is pinned anew in {known}")
