"""First contact: what is read, and what is written."""

import socket
import subprocess
import threading

import paramiko
import pytest
import yaml

from trackside import init
from trackside.errors import InputError, NodeError

RIGHT = "right"


def test_words_become_hosts():
    hosts = init.parse_hosts(["ubuntu@10.0.0.1", "gpu2=10.0.0.2:2222", "node-c"])
    assert [(h.name, h.address, h.port, h.user) for h in hosts] == [
        ("node1", "10.0.0.1", 22, "ubuntu"),
        ("gpu2", "10.0.0.2", 2222, ""),
        ("node-c", "node-c", 22, ""),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["a", "a"],
        ["x=10.0.0.1", "y=10.0.0.1"],
        ["a:b:c"],
        ["-=1.2.3.4"],
        ["a:0"],
        ["a:65536"],
        ["a_b"],
        ["x=a", "y=a:23"],
        ["10.0.0.1", "node1"],
        [""],
    ],
)
def test_wrong_words_are_refused(words):
    with pytest.raises(InputError):
        init.parse_hosts(words)


def test_a_hostfile_is_read(tmp_path):
    path = tmp_path / "hostfile"
    path.write_bytes(b"# nodes\r\n\r\nw0 slots=8\r\nw1\tslots=4 # two\r\n")
    assert [(h.name, h.slots) for h in init.read_hostfile(path)] == [("w0", 8), ("w1", 4)]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("w slots=4abc", "w slots=4"),
        ("w slots = 8", "w slots=8"),
        ("w:8", "w slots=8"),
        ("w lots=8", "w slots=8"),
        ("w", "w slots=N"),
        ("w max_slots=8 slots=4", "w slots=4"),
        ("w max-slots=8 slots=4", "w slots=4"),
        ("w slots=4.5", "w slots=4"),
        ("w slots=0,1,2,3", "w slots=4"),
        ("w slots=0", "w slots=N"),
        ("w 8", "w slots=8"),
        ("w slot=8", "w slots=8"),
        ("ubuntu@w slots=8", "w slots=8"),
        ("w0 slots=8 w1 slots=8", "w0 slots=8, then on a line of its own w1 slots=8"),
    ],
)
def test_what_deepspeed_reads_wrong_is_refused_with_its_line(tmp_path, line, meant):
    path = tmp_path / "hostfile"
    path.write_text("first slots=1\n" + line + "\n")
    with pytest.raises(InputError, match="line 2") as caught:
        init.read_hostfile(path)
    assert caught.value.fix == f"probably meant: {meant}"


def test_a_host_twice_is_refused_with_its_line(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text("w slots=1\n\nw slots=2\n")
    with pytest.raises(InputError, match=r"line 3.*given twice"):
        init.read_hostfile(path)


def test_an_address_in_a_hostfile_gets_a_name(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text("10.0.0.8 slots=2\n10.0.0.9 slots=2\n")
    assert [(h.name, h.address) for h in init.read_hostfile(path)] == [("node1", "10.0.0.8"), ("node2", "10.0.0.9")]


@pytest.mark.parametrize("content", [b"", b"# none\n", b"\xff\xfe\n"])
def test_a_hostfile_without_hosts_is_refused(tmp_path, content):
    path = tmp_path / "hostfile"
    path.write_bytes(content)
    with pytest.raises(InputError):
        init.read_hostfile(path)


def test_the_inventory_pins_and_never_trusts_blindly(tmp_path):
    folder = tmp_path / "mine"
    hosts = [init.Host("a", "10.0.0.1", 2222, "ubuntu", 4), init.Host("b", "10.0.0.2", user="root")]
    init.write_inventory(folder, hosts, ["a t K", "b t L"], "ubuntu", tmp_path / "k", "cu130")
    nodes = yaml.safe_load((folder / "hosts.yml").read_text())["nodes"]
    assert nodes["hosts"] == {
        "a": {"ansible_host": "10.0.0.1", "ansible_port": 2222, "slots": 4},
        "b": {"ansible_host": "10.0.0.2", "ansible_user": "root"},
    }
    assert nodes["vars"] == {
        "ansible_user": "ubuntu",
        "ansible_ssh_common_args": "-o 'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts\"'"
        " -o StrictHostKeyChecking=yes",
        "trackside_stack": "cu130",
        "ansible_ssh_private_key_file": str(tmp_path / "k"),
    }
    assert (folder / "known_hosts").read_text() == "a t K\nb t L\n"
    with pytest.raises(InputError, match="exists already"):
        init.write_inventory(folder, hosts, ["a t OTHER"], "ubuntu", None)
    assert (folder / "known_hosts").read_text() == "a t K\nb t L\n"


def test_a_new_key_replaces_the_old(tmp_path):
    known = tmp_path / "known_hosts"
    known.write_text("# ours\na,1.1.1.1 t OLD\n[a]:2222 t OLDER\nab t K\n")
    init.repin(tmp_path, "a", ["a,1.1.1.2 t NEW"])
    assert known.read_text() == "# ours\nab t K\na,1.1.1.2 t NEW\n"


class Server(paramiko.ServerInterface):
    """An ssh server of one user, whose commands run in a home of the test's."""

    def __init__(self, home):
        self.home = home

    def check_auth_password(self, _username, password):
        return paramiko.AUTH_SUCCESSFUL if password == RIGHT else paramiko.AUTH_FAILED

    def check_auth_publickey(self, _username, key):
        known = self.home / ".ssh" / "authorized_keys"
        listed = known.exists() and key.get_base64() in known.read_text().split()
        return paramiko.AUTH_SUCCESSFUL if listed else paramiko.AUTH_FAILED

    def get_allowed_auths(self, _username):
        return "password,publickey"

    def check_channel_request(self, _kind, _channel_id):
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel, command):
        threading.Thread(target=self.execute, args=(channel, command), daemon=True).start()
        return True

    def execute(self, channel, command):
        given = channel.makefile("rb").read()
        argv = ["sh", "-c", command.decode()]
        done = subprocess.run(
            argv, input=given, capture_output=True, check=False, env={"HOME": str(self.home), "PATH": "/usr/bin:/bin"}
        )
        channel.sendall_stderr(done.stderr)
        channel.send_exit_status(done.returncode)
        channel.close()


def make_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "it's me", "-f", str(path)], check=True)
    return path


@pytest.fixture
def node(tmp_path):
    """Return a host that answers on loopback, and its user's home."""
    home = tmp_path / "home"
    home.mkdir()
    key = paramiko.Ed25519Key(filename=str(make_key(tmp_path / "host_key")))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(key)
            transport.start_server(event=threading.Event(), server=Server(home))

    threading.Thread(target=serve, daemon=True).start()
    yield init.Host("a", "127.0.0.1", listener.getsockname()[1]), home
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_the_scanned_key_is_the_servers(node, tmp_path):
    host, _ = node
    (line,) = init.scan_host_keys(host)
    kind, key = (tmp_path / "host_key.pub").read_text().split()[:2]
    assert line == f"[a]:{host.port},[127.0.0.1]:{host.port} {kind} {key}"
    shown = subprocess.run(["ssh-keygen", "-lf", tmp_path / "host_key.pub"], capture_output=True, text=True, check=True)
    assert init.fingerprint(line) == shown.stdout.split()[1]


def test_a_key_is_installed_once_and_works(node, tmp_path):
    host, home = node
    (line,) = init.scan_host_keys(host)
    key = make_key(tmp_path / "id")
    public = (tmp_path / "id.pub").read_text()
    known = home / ".ssh" / "authorized_keys"
    known.parent.mkdir(mode=0o755)
    known.write_text("ssh-ed25519 AAAA without a newline")
    with pytest.raises(NodeError, match="refuses the key"):
        init.verify_key(host, "u", key, line)
    for _ in range(2):
        init.install_key(host, "u", RIGHT, public, line)
    init.verify_key(host, "u", key, line)
    assert known.read_text() == f"ssh-ed25519 AAAA without a newline\n{public}"
    assert (known.parent.stat().st_mode & 0o777, known.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_wrong_password_and_a_wrong_host_key_are_told_apart(node, tmp_path):
    host, home = node
    (line,) = init.scan_host_keys(host)
    with pytest.raises(NodeError, match="refuses the password") as caught:
        init.install_key(host, "u", "wrong-secret", "k", line)
    assert "wrong-secret" not in str(caught.value)
    other = line.split()[0] + " " + " ".join(make_key(tmp_path / "other").with_suffix(".pub").read_text().split()[:2])
    with pytest.raises(NodeError, match="another host key"):
        init.install_key(host, "u", RIGHT, "k", other)
    assert not (home / ".ssh").exists()


def test_nobody_home():
    with pytest.raises(NodeError, match="refuses the connection"):
        init.scan_host_keys(init.Host("a", "127.0.0.1", 1))
    with pytest.raises(NodeError, match="does not resolve"):
        init.scan_host_keys(init.Host("a", "no-such-host.invalid"))


def test_what_is_no_ssh_server_is_said_to_be_none(capfd):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = init.Host("a", "127.0.0.1", silent.getsockname()[1])
        with pytest.raises(NodeError, match=r"a .*does not speak ssh"):
            init.scan_host_keys(host, timeout=0.5)
    assert capfd.readouterr().err == ""
