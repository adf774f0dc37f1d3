"""The local cluster's pure parts: exact commands, files as their readers read them, and what is picked."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml

from trackside.errors import InputError, NodeError
from trackside.local import cluster, engine, image, inventory
from trackside.local.engine import Engine
from trackside.local.inventory import Node

PODMAN = Engine("podman")
DOCKER = Engine("docker", arguments=("--security-opt", "writable-cgroups=true"))
NODES = [Node("node1", "10.89.0.11"), Node("node2", "10.89.0.12")]
KEY = "ssh-ed25519 AAAAC3Nz cluster key"
ANSIBLE_INVENTORY = shutil.which("ansible-inventory", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def test_create_with_podman():
    assert cluster.create_argv(PODMAN, "demo", NODES[0], "img:1", Path("/inv")) == [
        "create", "--name", "trackside-demo-node1", "--hostname", "node1", "--env", "HOSTNAME=node1",
        "--label", "org.trackside.cluster=demo", "--label", "org.trackside.node=node1",
        "--label", "org.trackside.address=10.89.0.11", "--label", "org.trackside.image=img:1",
        "--label", "org.trackside.directory=/inv",
        "--network", "trackside-demo", "--network-alias", "node1", "--ip", "10.89.0.11",
        "--mac-address", "02:74:0a:59:00:0b", "--shm-size", "512m",
        "--no-hosts", "--systemd=always", "img:1", "/sbin/init",
    ]  # fmt: skip


def test_create_with_docker():
    argv = cluster.create_argv(DOCKER, "demo", NODES[0], "img:1", Path("/inv"))
    assert argv[argv.index("512m") + 1 :] == [
        "--cgroupns=private", "--tmpfs", "/run", "--tmpfs", "/run/lock", "--env", "container=docker",
        "--stop-signal", "SIGRTMIN+3", "--security-opt", "writable-cgroups=true", "img:1", "/sbin/init",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("which", "dns", "extra"), [(PODMAN, True, []), (PODMAN, False, ["--disable-dns"]), (DOCKER, True, [])]
)
def test_network_create(which, dns, extra):
    assert cluster.network_argv(which, "demo", IPv4Network("10.89.3.0/24"), dns=dns) == [
        "network", "create", "--subnet", "10.89.3.0/24", "--label", "org.trackside.cluster=demo",
        "--label", f"org.trackside.dns={'true' if dns else 'false'}", *extra, "trackside-demo",
    ]  # fmt: skip


def test_copy_keeps_owners():
    assert cluster.copy_argv(PODMAN, "c") == ["cp", "--archive=false", "-", "c:/"]
    assert cluster.copy_argv(DOCKER, "c") == ["cp", "-", "c:/"]


def test_trial_and_commit():
    assert engine.trial_argv(PODMAN, "t", "img:1") == [
        "run", "--detach", "--name", "t", "--network", "none", "--systemd=always", "img:1", "/sbin/init",
    ]  # fmt: skip
    assert image.commit_argv("c", "img:2") == [
        "commit", "--change", 'CMD ["/sbin/init"]', "--change", "LABEL org.trackside.cluster=", "c", "img:2",
    ]  # fmt: skip


def test_podman_settings_begin_with_its_own_and_end_with_the_hosts_limits():
    first, second, third = engine.candidates("podman", {"nofile": 20000, "nproc": 4096})
    assert first == engine.Settings()
    assert "default_ulimits" not in second.conf
    assert third.conf == (
        '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
    )


def test_an_unlimited_resource_is_left_out():
    assert "default_ulimits = []" in engine.candidates("podman", {"nofile": -1, "nproc": -1})[2].conf


def test_docker_is_privileged_last():
    assert [settings.arguments for settings in engine.candidates("docker", {})] == [
        ("--security-opt", "writable-cgroups=true"),
        ("--privileged",),
    ]


def test_mmdebstrap_names_no_mirror():
    argv = image.mmdebstrap_argv(Path("/t/root.tar"))
    assert argv[:3] == ["mmdebstrap", "--quiet", "--variant=minbase"]
    assert argv[3].startswith("--include=systemd-sysv,dbus,")
    assert argv[4].startswith('--customize-hook=chroot "$1" sh -c \'set -e\nuseradd ')
    assert argv[5:] == ["bookworm", "/t/root.tar"]


@pytest.mark.parametrize("script", [image.INSIDE, image.FORGET, image.mmdebstrap_argv(Path("/t"))[4].split("=", 1)[1]])
def test_scripts_are_shell(script):
    subprocess.run(["sh", "-n", "-c", script], check=True)


def test_image_key_follows_its_content(monkeypatch):
    before = image.bare_tag()
    assert before == image.bare_tag()
    assert len(before.removeprefix("localhost/trackside-node:bare-")) == 12
    monkeypatch.setattr(image, "PACKAGES", (*image.PACKAGES, "tcpdump"))
    assert image.bare_tag() != before


def test_networks_of_both_engines():
    podman = [{"name": "a", "subnets": [{"subnet": "10.89.0.0/24"}, {"subnet": "fd00::/64"}], "labels": {"k": "v"}}]
    docker = [
        {"Name": "b", "IPAM": {"Config": [{"Subnet": "172.17.0.0/16"}]}, "Labels": {}},
        {"Name": "host", "IPAM": {"Config": None}, "Labels": {}},
    ]
    assert cluster.parse_networks(json.dumps(podman)) == {
        "a": cluster.Network((IPv4Network("10.89.0.0/24"),), {"k": "v"})
    }
    assert cluster.parse_networks(json.dumps(docker)) == {
        "b": cluster.Network((IPv4Network("172.17.0.0/16"),), {}),
        "host": cluster.Network((), {}),
    }


def test_routes_of_a_machine():
    recorded = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "podman1\t0000630A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert cluster.parse_routes(recorded) == [IPv4Network("10.99.0.0/24"), IPv4Network("192.0.2.0/24")]


@pytest.mark.parametrize(
    ("used", "picked"),
    [
        ([], "10.89.0.0/24"),
        (["10.89.0.0/24", "10.99.0.0/24"], "10.89.1.0/24"),
        (["10.89.0.0/23", "10.89.2.128/25"], "10.89.3.0/24"),
    ],
)
def test_subnet_is_the_first_that_overlaps_nothing(used, picked):
    assert cluster.free_subnet(map(IPv4Network, used)) == IPv4Network(picked)


def test_no_subnet_left():
    with pytest.raises(NodeError, match="in use"):
        cluster.free_subnet([IPv4Network("10.0.0.0/8")])


def test_addresses_begin_at_eleven():
    assert cluster.addresses(IPv4Network("10.89.4.0/24"), 2) == [
        Node("node1", "10.89.4.11"),
        Node("node2", "10.89.4.12"),
    ]


@pytest.mark.parametrize(("name", "nodes", "slots"), [("Demo", 1, 1), ("a b", 1, 1), ("demo", 0, 1), ("demo", 1, 0)])
def test_nonsense_is_refused_before_anything_is_touched(name, nodes, slots, tmp_path):
    with pytest.raises(InputError):
        cluster.up(name, nodes=nodes, slots=slots, image="bare", directory=tmp_path / "x", say=print)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "a folder"
    inventory.ensure_key(path / "id_ed25519", "cluster")
    for node in NODES:
        inventory.ensure_key(inventory.host_key(path, node.name), node.name)
    inventory.write(path, NODES, slots=2)
    return path


def test_inventory_as_yaml_reads_it():
    document = yaml.safe_load(inventory.render_hosts(NODES, 2, KEY, ["/c/a.crt"]))
    assert document["nodes"]["hosts"]["node2"] == {"ansible_host": "10.89.0.12", "slots": 2}
    assert document["nodes"]["vars"] == {
        "ansible_user": "admin",
        "ansible_ssh_private_key_file": "{{ inventory_dir }}/id_ed25519",
        "ansible_ssh_common_args": "-o 'UserKnownHostsFile=\"{{ inventory_dir }}/known_hosts\"'"
        " -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
        "trackside_stack": "cpu",
        "training_user_authorized_keys": [KEY],
        "ca_certificates_extra": ["/c/a.crt"],
    }
    assert "ca_certificates_extra" not in inventory.render_hosts(NODES, 2, KEY, [])


def test_inventory_as_ansible_reads_it(folder):
    argv = [ANSIBLE_INVENTORY, "-i", str(folder / "hosts.yml"), "--list"]
    listed = json.loads(subprocess.run(argv, capture_output=True, check=True, cwd=folder).stdout)
    assert listed["nodes"]["hosts"] == ["node1", "node2"]
    assert listed["_meta"]["hostvars"]["node1"]["ansible_host"] == "10.89.0.11"
    assert listed["_meta"]["hostvars"]["node1"]["slots"] == 2


def test_ssh_config_as_ssh_reads_it(folder):
    argv = ["ssh", "-G", "-F", str(folder / "ssh_config"), "node2"]
    options = subprocess.run(argv, capture_output=True, check=True, text=True).stdout.splitlines()
    assert {"hostname 10.89.0.12", "user admin", "identitiesonly yes", "stricthostkeychecking true"} <= set(options)
    assert f"userknownhostsfile {folder}/known_hosts" in options


@pytest.mark.parametrize("host", ["node2", "10.89.0.12"])
def test_known_hosts_as_ssh_keygen_reads_it(folder, host):
    argv = ["ssh-keygen", "-F", host, "-f", str(folder / "known_hosts")]
    found = subprocess.run(argv, capture_output=True, check=True, text=True).stdout
    assert inventory.public_half(inventory.host_key(folder, "node2")).split()[1] in found


def test_writing_again_changes_nothing_and_keys_stay(folder):
    before = (folder / "id_ed25519").read_bytes()
    assert not inventory.ensure_key(folder / "id_ed25519", "cluster")
    assert not inventory.write(folder, NODES, slots=2)
    assert inventory.write(folder, NODES, slots=3)
    assert (folder / "id_ed25519").read_bytes() == before
    assert (folder / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert inventory.read(folder) == NODES


@pytest.mark.parametrize("lost", ["id_ed25519", "id_ed25519.pub"])
def test_half_a_key_is_made_anew(folder, lost):
    (folder / lost).unlink()
    assert inventory.ensure_key(folder / "id_ed25519", "cluster")


def test_files_of_a_node_have_their_owners_and_modes(folder):
    with tarfile.open(fileobj=io.BytesIO(inventory.node_files(folder, NODES[0], fresh=True))) as tar:
        assert {entry.name: (entry.mode, entry.uid) for entry in tar} == {
            "home/admin/.ssh": (0o700, 1000),
            "home/admin/.ssh/authorized_keys": (0o600, 1000),
            "etc/ssh/ssh_host_ed25519_key": (0o600, 0),
            "etc/ssh/ssh_host_ed25519_key.pub": (0o644, 0),
            "etc/hosts": (0o644, 0),
        }
        assert tar.extractfile("etc/hosts").read() == b"127.0.0.1\tlocalhost\n10.89.0.11\tnode1\n"
    with tarfile.open(fileobj=io.BytesIO(inventory.node_files(folder, NODES[0], fresh=False))) as again:
        assert "etc/hosts" not in again.getnames()


def test_removal_leaves_what_others_wrote(folder):
    (folder / "group_vars").mkdir()
    assert inventory.remove(folder)
    assert [path.name for path in folder.iterdir()] == ["group_vars"]
    assert not inventory.remove(folder)


def test_a_folder_of_someone_elses_keys_is_refused_and_left(tmp_path):
    (tmp_path / "id_ed25519").write_text("mine")
    with pytest.raises(InputError, match="id_ed25519"):
        inventory.refuse_foreign(tmp_path)
    assert not inventory.remove(tmp_path)
    assert (tmp_path / "id_ed25519").read_text() == "mine"


def test_cache_directory(monkeypatch):
    monkeypatch.delenv("TRACKSIDE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert engine.cache_directory() == Path("/x/trackside")
    monkeypatch.setenv("TRACKSIDE_CACHE", "/y")
    assert engine.cache_directory() == Path("/y")
