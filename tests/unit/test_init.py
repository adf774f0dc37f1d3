"""First contact: what is read, and what is written."""

import pytest
import yaml

from trackside import init
from trackside.errors import InputError, NodeError


def test_words_become_hosts():
    hosts = init.parse_hosts(["ubuntu@10.0.0.1", "gpu2=10.0.0.2:2222", "node-c"])
    assert [(h.name, h.address, h.port, h.user) for h in hosts] == [
        ("node1", "10.0.0.1", 22, "ubuntu"),
        ("gpu2", "10.0.0.2", 2222, ""),
        ("node-c", "node-c", 22, ""),
    ]


@pytest.mark.parametrize("words", [["a", "a"], ["x=10.0.0.1", "y=10.0.0.1"], ["a:b:c"], ["-=1.2.3.4"]])
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
        ("w0 slots=8 w1 slots=8", "w0 slots=8"),
    ],
)
def test_what_deepspeed_reads_wrong_is_refused_with_its_line(tmp_path, line, meant):
    path = tmp_path / "hostfile"
    path.write_text("first slots=1\n" + line + "\n")
    with pytest.raises(InputError, match="line 2") as caught:
        init.read_hostfile(path)
    assert meant in caught.value.fix


def test_the_inventory_pins_and_never_trusts_blindly():
    text = init.inventory_text([init.Host("a", "10.0.0.1", 2222, "ubuntu", 4)], "ubuntu", "/k")
    nodes = yaml.safe_load(text)["nodes"]
    assert nodes["hosts"]["a"] == {"ansible_host": "10.0.0.1", "ansible_port": 2222, "slots": 4}
    assert "StrictHostKeyChecking=yes" in nodes["vars"]["ansible_ssh_common_args"]


def test_a_new_key_replaces_the_old():
    assert init.repinned("a,1.1.1.1 t OLD\nb t K\n", "a,1.1.1.1 t NEW") == "b t K\na,1.1.1.1 t NEW\n"


def test_nobody_home():
    with pytest.raises(NodeError, match="nothing speaks ssh"):
        init.scan(init.Host("a", "127.0.0.1", 1))
    with pytest.raises(NodeError, match="does not resolve"):
        init.scan(init.Host("a", "no-such-host.invalid"))
