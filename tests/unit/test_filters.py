"""The cluster model and what is said of it."""

import pytest
from ansible.errors import AnsibleFilterError
from named_like_us import filters


def node(*addresses, gpus=()):
    return {
        "addresses": [{"address": a, "prefix": 24, "interface": i} for a, i in addresses],
        "gpus": list(gpus),
    }


def hostvars(**nodes):
    return {name: {"trackside_node": value} for name, value in nodes.items()}


def test_shared_subnet_and_order():
    known = hostvars(
        a=node(("10.0.0.1", "eth0"), ("192.168.7.1", "usb0")), b=node(("10.0.0.2", "ens5"), gpus=["H200", "H200"])
    )
    model = filters.cluster_model(known, ["a", "b"], "b")
    assert model["order"] == ["b", "a"]
    assert model["fabric"]["b"] == {"address": "10.0.0.2", "interface": "ens5"}
    assert model["slots"] == {"b": 2, "a": 1}
    assert model["world_size"] == 3


def test_several_subnets_are_refused_with_candidates():
    both = (("10.0.0.1", "eth0"), ("10.1.0.1", "ib0")), (("10.0.0.2", "eth0"), ("10.1.0.2", "ib0"))
    known = hostvars(a=node(*both[0]), b=node(*both[1]))
    with pytest.raises(AnsibleFilterError, match=r"10.0.0.0/24, 10.1.0.0/24.*fabric_interface"):
        filters.cluster_model(known, ["a", "b"], "a")
    for values in known.values():
        values["fabric_interface"] = "ib0"
    assert filters.cluster_model(known, ["a", "b"], "a")["fabric"]["b"]["address"] == "10.1.0.2"


def test_each_node_may_say_its_own_address():
    known = hostvars(a=node(("10.0.0.1", "eth0")), b=node(("10.0.0.2", "eth0"), ("10.9.0.2", "ib0")))
    known["a"]["fabric_address"] = "10.0.0.1"
    known["b"]["fabric_address"] = "10.9.0.2"
    assert filters.cluster_model(known, ["a", "b"], "a")["fabric"]["b"] == {"address": "10.9.0.2", "interface": "ib0"}
    known["b"]["fabric_address"] = "10.9.0.3"
    with pytest.raises(AnsibleFilterError, match=r"b has no address 10.9.0.3: it has 10.0.0.2 on eth0"):
        filters.cluster_model(known, ["a", "b"], "a")


def test_one_address_for_two_nodes_is_refused():
    known = hostvars(a=node(("172.17.0.1", "br0")), b=node(("172.17.0.1", "br0")))
    with pytest.raises(AnsibleFilterError, match="b and a both have the fabric address"):
        filters.cluster_model(known, ["a", "b"], "a")


def test_a_cluster_of_one_needs_no_shared_subnet():
    known = hostvars(a=node(("10.0.0.1", "eth0"), ("10.1.0.1", "ib0")))
    assert filters.cluster_model(known, ["a"], "a")["fabric"]["a"]["address"] == "10.0.0.1"


def test_a_node_outside_of_the_limit_stays_in_the_cluster():
    known = {**hostvars(a=node(("10.0.0.1", "eth0"))), "b": {"ansible_host": "10.0.0.2", "slots": 4}}
    model = filters.cluster_model(known, ["a", "b"], "a")
    assert filters.run_nodes(model) == [
        {"name": "a", "slots": 1, "address": "10.0.0.1", "interface": "eth0"},
        {"name": "b", "slots": 4, "address": "10.0.0.2", "interface": ""},
    ]
    with pytest.raises(AnsibleFilterError, match="no slots in the inventory"):
        filters.cluster_model({**known, "b": {"ansible_host": "10.0.0.2"}}, ["a", "b"], "a")
    with pytest.raises(AnsibleFilterError, match=r"gpu2\.example is no address"):
        filters.cluster_model({**known, "b": {"ansible_host": "gpu2.example", "slots": 4}}, ["a", "b"], "a")


def test_slots_of_the_inventory_count_before_the_gpus_found():
    known = hostvars(a=node(("10.0.0.1", "eth0"), gpus=["H200"] * 8))
    known["a"]["slots"] = "2"
    assert filters.cluster_model(known, ["a"], "a")["slots"] == {"a": 2}


def test_no_shared_subnet_is_refused():
    known = hostvars(a=node(("10.0.0.1", "eth0")), b=node(("10.9.0.2", "eth0")))
    with pytest.raises(AnsibleFilterError, match="share no subnet"):
        filters.cluster_model(known, ["a", "b"], "a")


@pytest.mark.parametrize(
    ("variables", "nodes", "heads", "words"),
    [
        ({}, [], [], "empty or missing"),
        ({"a": {"ansible_host": "10.0.0.1"}, "b": {"ansible_host": "10.0.0.1"}}, ["a", "b"], [], "same address"),
        ({"a": {"slots": 0}}, ["a"], [], "slots is 0"),
        ({"a": {"slots": "many"}}, ["a"], [], "slots is 'many'"),
        ({"a": {}}, ["a"], ["z"], "not in `nodes`"),
        ({"a": {}, "b": {}}, ["a", "b"], ["a", "b"], "keep one"),
        ({"a b": {}}, ["a b"], [], "not a host name"),
    ],
)
def test_inventory_problems(variables, nodes, heads, words):
    assert words in "; ".join(filters.inventory_problems(variables, nodes, heads))


def test_a_right_inventory_has_no_problems():
    assert filters.inventory_problems({"a": {}, "b": {"slots": 2}}, ["a", "b"], ["b"]) == []


def test_one_address_may_have_several_ports():
    places = {"a": {"ansible_host": "h", "ansible_port": 2201}, "b": {"ansible_host": "h", "ansible_port": 2202}}
    assert filters.inventory_problems(places, ["a", "b"], []) == []


def test_known_hosts_name_each_key_by_name_and_address():
    lines = filters.known_hosts_lines({"a": ["ssh-ed25519 AAA", "ssh-rsa BBB"]}, {"a": "10.0.0.1"}, {})
    assert lines == ["a,10.0.0.1 ssh-ed25519 AAA", "a,10.0.0.1 ssh-rsa BBB"]


def test_known_hosts_carry_the_port_where_it_is_not_22():
    lines = filters.known_hosts_lines({"a": ["ssh-ed25519 AAA"]}, {"a": "10.0.0.1"}, {"a": 2222})
    assert lines == ["[a]:2222,[10.0.0.1]:2222 ssh-ed25519 AAA"]


def test_mesh_key_is_good_from_the_head_only():
    lines = filters.mesh_key_lines("ssh-ed25519 AAA mesh\n", ["10.0.0.1", "127.0.0.1", "fe80::1%eth0"], ["other"])
    assert lines[0].startswith('from="10.0.0.1,127.0.0.1",no-agent-forwarding,no-port-forwarding')
    assert lines[0].endswith(" ssh-ed25519 AAA mesh")
    assert lines[1] == "other"
    assert filters.mesh_key_lines("", ["10.0.0.1"], ["other"]) == ["other"]


def test_summary_of_a_failed_run_says_why_and_where():
    text = filters.run_summary({"state": {"state": "failed", "reason": "rank 1"}, "result": {}}, "x", "/r/x", "runs/x")
    assert "failed: rank 1" in text
    assert "runs/x/logs" in text


def test_summary_of_a_run_that_succeeded():
    result = {
        "world_size": 3,
        "hosts": ["a", "a", "b"],
        "losses": [2.3, 1.1, 0.2],
        "accuracy": 0.97,
        "checkpoint": "/r/x/output/checkpoint",
    }
    state = {"state": "succeeded", "reason": "every rank ended with 0"}
    text = filters.run_summary({"state": state, "result": result}, "x", "/r/x", "runs/x")
    assert "3 on a, b" in text
    assert "2.3000 █▄▁ 0.2000 in 3 steps" in text
    assert "0.9700 on held-out data" in text
    assert "--resume /r/x/output/checkpoint" in text


@pytest.mark.parametrize("count", [1, 39, 40, 41, 1000])
def test_a_sparkline_fits_its_width(count):
    line = filters.sparkline(list(range(count)))
    assert len(line) == min(count, 40)
    assert list(line) == sorted(line)
