"""The cluster model and what is said of it."""

import pytest
from ansible.errors import AnsibleFilterError
from cluster_filters import filters


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
        ({"a": {}}, ["a"], ["z"], "not in `nodes`"),
        ({"a b": {}}, ["a b"], [], "not a host name"),
    ],
)
def test_inventory_problems(variables, nodes, heads, words):
    assert words in "; ".join(filters.inventory_problems(variables, nodes, heads))


def test_a_right_inventory_has_no_problems():
    assert filters.inventory_problems({"a": {}, "b": {"slots": 2}}, ["a", "b"], ["b"]) == []


def test_known_hosts_carry_the_port_where_it_is_not_22():
    lines = filters.known_hosts_lines({"a": ["ssh-ed25519 AAA"]}, {"a": "10.0.0.1"}, {"a": 2222})
    assert lines == ["[a]:2222,[10.0.0.1]:2222 ssh-ed25519 AAA"]


def test_mesh_key_is_good_from_the_head_only():
    lines = filters.mesh_key_lines("ssh-ed25519 AAA mesh\n", ["10.0.0.1", "127.0.0.1", "fe80::1%eth0"], ["other"])
    assert lines[0].startswith('from="10.0.0.1,127.0.0.1",no-agent-forwarding,no-port-forwarding')
    assert lines[1] == "other"


def test_summary_of_a_failed_run_says_why_and_where():
    text = filters.run_summary({"state": {"state": "failed", "reason": "rank 1"}, "result": {}}, "x", "/r/x", "runs/x")
    assert "failed: rank 1" in text
    assert "runs/x/logs" in text


def test_a_wrong_sum_fails():
    cluster = {"world_size": 3}
    right = {"result": {"sum": 6, "right_on": 3, "seconds": 0.01, "bytes": 4}}
    wrong = {"result": {"sum": 5, "right_on": 0, "seconds": 0.01, "bytes": 4}}
    assert filters.all_reduce_result(right, cluster)["status"] == "ok"
    assert filters.all_reduce_result(wrong, cluster)["status"] == "fail"
    assert filters.all_reduce_result({}, cluster)["status"] == "skip"
