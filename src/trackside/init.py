"""First contact: hosts, their pinned host keys, and the person's key on them."""

from __future__ import annotations

import base64
import getpass
import hashlib
import logging
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import paramiko
import yaml
from paramiko.hostkeys import HostKeyEntry

from trackside.errors import InputError, NodeError

NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")
WORD = re.compile(r"^(?:(?P<name>[^=@:]+)=)?(?:(?P<user>[^@:]+)@)?(?P<address>[^@:]+)(?::(?P<port>\d+))?$")
HOSTFILE_LINE = re.compile(r"^(\S+)\s+slots=([0-9]+)(?:\s+max[_-]slots=[0-9]+)?$")
HOSTFILE_LIST = re.compile(r"slots\s*=\s*([0-9]+(?:,[0-9]+)+)")
HOSTFILE_COUNT = re.compile(r"(?:(?<![\w-])s?lots?\s*=?\s*|:|^\S+\s+)([1-9][0-9]*)")
SSH_PORT = 22
TIMEOUT_SECONDS = 10
HEADER = "# Written by `trackside init`; yours from now on. The order of the hosts is the rank order.\n"
COMMON = "-o 'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts\"' -o StrictHostKeyChecking=yes"
# One line and the key on stdin, for the login shell may be any. An unfinished last line is ended first, or the new key
# would be glued to it; SELinux wants its label, as ssh-copy-id knows.
APPEND_KEY = (
    "exec sh -c 'cd && umask 077 && IFS= read -r key && mkdir -p .ssh && chmod 700 .ssh && f=.ssh/authorized_keys && "
    'touch $f && chmod 600 $f || exit 1; grep -qxF -e "$key" $f && exit 0; test -z "$(tail -c 1 $f)" || echo >> $f; '
    'printf "%s\\n" "$key" >> $f || exit 1; command -v restorecon >/dev/null && restorecon -F .ssh $f; exit 0\''
)

# What fails is said by our NodeError; paramiko's thread would print its traceback as well.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


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
    """Return the hosts of `[name=][user@]address[:port]`; raises InputError for a wrong word, or a host twice."""
    hosts = []
    for position, word in enumerate(words, 1):
        match = WORD.match(word)
        if not match or not 0 < int(match["port"] or SSH_PORT) < 2**16:
            raise InputError(f"{word!r} is not [name=][user@]address[:port]")
        name = match["name"] or _name(match["address"], position)
        if not (NAME.fullmatch(name) and NAME.fullmatch(match["address"])):
            raise InputError(f"{word!r} holds no valid host name", "use letters, digits, `-` and `.`")
        hosts.append(Host(name, match["address"], int(match["port"] or SSH_PORT), match["user"] or ""))
    return _unique(hosts)


def _name(address: str, position: int) -> str:
    return f"node{position}" if re.fullmatch(r"[0-9.]+", address) else address


def _unique(hosts: list[Host]) -> list[Host]:
    if not hosts:
        raise InputError("no host is named", "give HOST…, or --from-hostfile with a file that names some")
    for kind, values in (("name", [host.name for host in hosts]), ("address", [host.address for host in hosts])):
        if twice := [value for value in values if values.count(value) > 1]:
            raise InputError(f"the {kind} {twice[0]} is given twice", "remove one")
    return hosts


def read_hostfile(path: Path) -> list[Host]:
    """Return the hosts of a DeepSpeed hostfile, refusing also what DeepSpeed 0.19 silently reads wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    hosts: list[Host] = []
    for number, raw in enumerate(lines, 1):
        if not (line := raw.split("#")[0].strip()):
            continue
        match = HOSTFILE_LINE.match(line)
        if not match or int(match[2]) < 1 or not NAME.fullmatch(match[1]):
            raise InputError(f"{path} line {number}: {line!r} is not `HOST slots=N`", f"probably meant: {_meant(line)}")
        if any(host.address == match[1] for host in hosts):
            raise InputError(f"{path} line {number}: {match[1]} is given twice", "remove one")
        hosts.append(Host(_name(match[1], len(hosts) + 1), match[1], slots=int(match[2])))
    return _unique(hosts)


def _meant(line: str) -> str:
    several = re.findall(r"(\S+)\s+slots=([0-9]+)", line)
    if len(several) > 1:
        return ", then on a line of its own ".join(f"{name} slots={count}" for name, count in several)
    name = re.split(r"[\s:=]", line)[0].rpartition("@")[2]
    if devices := HOSTFILE_LIST.search(line):
        return f"{name} slots={len(devices[1].split(','))}"
    count = HOSTFILE_COUNT.search(line)
    return f"{name} slots={count[1] if count else 'N'}"


def scan_host_keys(host: Host, timeout: float = TIMEOUT_SECONDS) -> list[str]:
    """Return the known_hosts lines of the host's own key, ed25519 where it has one.

    `timeout` is in seconds, for the connection and for the handshake. Raises NodeError when no key is had.
    """
    where = f"{host.name} ({host.address} port {host.port})"
    try:
        connection = socket.create_connection((host.address, host.port), timeout)
    except (socket.gaierror, UnicodeError) as error:
        raise NodeError(f"{where} does not resolve", "correct the name or give its address: name=address") from error
    except ConnectionRefusedError as error:
        raise NodeError(f"{where} refuses the connection", "is sshd running, and is the port right?") from error
    except OSError as error:
        raise NodeError(f"{where} does not answer: {error}", "is it on, does a firewall let ssh through?") from error
    transport = paramiko.Transport(connection)
    transport.banner_timeout = timeout
    try:
        options = transport.get_security_options()
        options.key_types = sorted(options.key_types, key=lambda kind: kind != "ssh-ed25519")
        transport.start_client(timeout=timeout)
        key = transport.get_remote_server_key()
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise NodeError(f"{where} does not speak ssh: {error}", "is it sshd that listens on this port?") from error
    finally:
        transport.close()
    form = "{}" if host.port == SSH_PORT else f"[{{}}]:{host.port}"
    names = dict.fromkeys((form.format(host.name), form.format(host.address)))
    return [f"{','.join(names)} {key.get_name()} {key.get_base64()}"]


def fingerprint(line: str) -> str:
    """Return a known_hosts line's fingerprint as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(line.split()[2])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def install_key(host: Host, user: str, password: str, public_key: str, host_key_line: str) -> None:
    """Append the public key to the user's authorized_keys by one login with the password, as ssh-copy-id does."""
    with _login(host, user, host_key_line, password=password) as client:
        stdin, stdout, stderr = client.exec_command(APPEND_KEY, timeout=TIMEOUT_SECONDS)
        stdin.write(public_key.strip() + "\n")
        stdin.channel.shutdown_write()
        said = stderr.read().decode(errors="replace").strip()
        if stdout.channel.recv_exit_status() != 0:
            raise NodeError(f"{host.name}: the key could not be installed: {said}", f"is {user}'s home writable?")


def verify_key(host: Host, user: str, private_key: Path, host_key_line: str) -> None:
    """Log in by the key alone; raises NodeError when the node refuses it."""
    with _login(host, user, host_key_line, key=private_key):
        pass


@contextmanager
def _login(
    host: Host, user: str, line: str, *, password: str | None = None, key: Path | None = None
) -> Iterator[paramiko.SSHClient]:
    """Log in to a host that shows the pinned key, by nothing but the password or the key given."""
    entry = HostKeyEntry.from_line(line)
    if entry is None or entry.hostnames is None or entry.key is None:
        raise InputError(f"{host.name}: {line!r} is no line of known_hosts")
    with paramiko.SSHClient() as client:
        connect = partial(client.connect, host.address, host.port, user, allow_agent=False, look_for_keys=False)
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        for name in entry.hostnames:
            client.get_host_keys().add(name, entry.key.get_name(), entry.key)
        try:
            connect(password=password, key_filename=str(key) if key else None, timeout=TIMEOUT_SECONDS)
            yield client
        except paramiko.PasswordRequiredException as error:
            raise InputError(f"{key} has a passphrase", "give a key without one with --key") from error
        except paramiko.AuthenticationException as error:
            what, fix = (f"key {key}", "install it with --ask-pass") if key else ("password", "check user and password")
            raise NodeError(f"{host.name} refuses the {what} of {user}", fix) from error
        except paramiko.BadHostKeyException as error:
            fix = f"if it was reinstalled: trackside init --repin {host.name}"
            raise NodeError(f"{host.name} shows another host key than the pinned one", fix) from error
        except (paramiko.SSHException, OSError) as error:
            raise NodeError(f"{host.name}: {error}", "is it on, does a firewall let ssh through?") from error


def write_inventory(
    directory: Path,
    hosts: list[Host],
    known_hosts_lines: list[str],
    user: str,
    private_key: Path | None,
    stack: str = "cpu",
) -> None:
    """Write hosts.yml and known_hosts; raises InputError where there is a hosts.yml already."""
    _refuse_existing(directory)
    entries = {}
    for host in hosts:
        entry: dict[str, object] = {"ansible_host": host.address}
        entry |= {"ansible_port": host.port} if host.port != SSH_PORT else {}
        entry |= {"ansible_user": host.user} if host.user and host.user != user else {}
        entries[host.name] = entry | ({"slots": host.slots} if host.slots else {})
    variables = {"ansible_user": user, "ansible_ssh_common_args": COMMON, "trackside_stack": stack}
    variables |= {"ansible_ssh_private_key_file": str(private_key)} if private_key else {}
    document = {"nodes": {"hosts": entries, "vars": variables}}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "known_hosts").write_text("\n".join(known_hosts_lines) + "\n")
    (directory / "hosts.yml").write_text(HEADER + yaml.safe_dump(document, sort_keys=False, width=1000))


def _refuse_existing(directory: Path) -> None:
    if (directory / "hosts.yml").exists():
        raise InputError(f"{directory / 'hosts.yml'} exists already", "edit it, or give another --directory")


def repin(directory: Path, node: str, lines: list[str]) -> None:
    """Replace the node's lines in the folder's known_hosts, whatever port they were pinned with."""
    known = directory / "known_hosts"
    names = "|".join(re.escape(name) for line in lines for name in [node, *line.split()[0].split(",")])
    theirs = re.compile(rf"(?:\S+,)?(?:{names}|\[{re.escape(node)}\]:\d+)[, ]")
    old = known.read_text().splitlines() if known.exists() else []
    kept = [line for line in old if not theirs.match(line)]
    known.write_text("\n".join([*kept, *lines]) + "\n")


def command(wanted: Wanted, say: Callable[[str], None]) -> None:
    """Do what `trackside init` was asked for; nothing is written before every host has answered."""
    if wanted.repin:
        _repin(wanted, say)
        return
    _refuse_existing(wanted.directory)
    hosts = read_hostfile(Path(wanted.from_hostfile)) if wanted.from_hostfile else parse_hosts(wanted.words)
    default = wanted.user or next((host.user for host in hosts if host.user), "") or getpass.getuser()
    hosts = [replace(host, user=host.user or default) for host in hosts]
    lines = [line for host in hosts for line in scan_host_keys(host)]
    _show(hosts, lines, wanted, say)
    key = Path(wanted.key).expanduser().resolve() if wanted.key else None
    if wanted.ask_pass:
        key = key or _own_key(say)
        public = _public_key(key)
        password = getpass.getpass(f"password of {default} on the nodes: ")
        for host, line in zip(hosts, lines, strict=True):
            install_key(host, host.user, password, public, line)
            verify_key(host, host.user, key, line)
            say(f"{host.name}: the key is installed and works")
    write_inventory(wanted.directory, hosts, lines, default, key)
    say(f"{wanted.directory / 'hosts.yml'} written; next: trackside setup -i {wanted.directory}")


def _show(hosts: list[Host], lines: list[str], wanted: Wanted, say: Callable[[str], None]) -> None:
    for host, line in zip(hosts, lines, strict=True):
        say(f"{host.name}  {host.address}  {line.split()[1]}  {fingerprint(line)}")
    if not wanted.yes and input("Are these the hosts' keys? [y/N] ").strip().lower() not in ("y", "yes"):
        raise InputError("nothing was written")


def _own_key(say: Callable[[str], None]) -> Path:
    key = Path("~/.ssh/id_ed25519").expanduser()
    if not key.exists():
        key.parent.mkdir(mode=0o700, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        say(f"{key} made")
    return key


def _public_key(key: Path) -> str:
    """Return the public part of a private key that has no passphrase."""
    made = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", str(key)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise InputError(f"{key}: {made.stderr.strip()}", "give a private key without a passphrase by --key")
    return made.stdout


def _repin(wanted: Wanted, say: Callable[[str], None]) -> None:
    target = wanted.directory / "hosts.yml"
    if not target.exists():
        raise InputError(f"there is no {target}", "give its folder with --directory")
    nodes = yaml.safe_load(target.read_text())["nodes"]["hosts"]
    if wanted.repin not in nodes:
        raise InputError(f"{wanted.repin} is not in {target}", f"it has {', '.join(nodes)}")
    entry = nodes[wanted.repin] or {}
    host = Host(wanted.repin, entry.get("ansible_host", wanted.repin), entry.get("ansible_port", SSH_PORT))
    lines = scan_host_keys(host)
    _show([host], lines, wanted, say)
    repin(wanted.directory, host.name, lines)
    say(f"{host.name}'s key is pinned anew in {wanted.directory / 'known_hosts'}")
