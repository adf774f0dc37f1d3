"""What check says of what the nodes measured: each thing that is wrong, on the node that has it, and nothing else."""

import copy

import pytest
import trackside_check as module
from named_like_us import load_filter

check = load_filter("trackside_check")
PROBE = {"words": "", "memlock": "unlimited", "nofile": "1048576", "clock": 0.01, "clock_error": 0.02}
STACK = {"versions": {"torch": "2.13.0", "deepspeed": "0.19.8"}, "ops": ["cpu_adam"], "cuda": None}
MEASURED = {
    "os": "debian 12",
    "kernel": "6.1.0-30",
    "glibc": "2.36",
    "architecture": "x86_64",
    "python": "3.11.2",
    "torch": "2.13.0+cpu",
    "torch_cuda": "",
    "nccl": "",
    "deepspeed": "0.19.8",
    "ops": ["cpu_adam"],
    "openmpi": "4.1.4 in /usr",
    "driver": "",
    "gpus": [],
    "environment": "cpu-0123 sha256 4567",
    "changed": "",
    "packages": [],
    "mtu": 1500,
    "shm": 1 << 30,
}


def answers(node="", **changes):
    """Three equal nodes, and what one of them has otherwise."""
    found = {name: {"measured": copy.deepcopy(MEASURED), "stack": STACK, "mesh": {}} for name in ("a", "b", "c")}
    found["a"]["mesh"] = {name: dict(PROBE) for name in found}
    for name, value in changes.items():
        (found["a"]["mesh"][node] if name in PROBE else found[node]["measured"])[name] = value
    return found


def failures(found, **options):
    return [
        (row["check"], row["node"]) for row in check.check_results(found, "a", **options) if row["status"] == "fail"
    ]


def test_equal_nodes_pass_every_check():
    assert {row["status"] for row in check.check_results(answers(), "a")} == {"ok"}


@pytest.mark.parametrize("node", ["a", "b", "c"])
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"os": "debian 13"}, "operating system"),
        ({"glibc": "2.41"}, "glibc"),
        ({"architecture": "aarch64"}, "architecture"),
        ({"python": "3.12.3"}, "python"),
        ({"torch": "2.12.0"}, "torch"),
        ({"torch": ""}, "torch"),
        ({"deepspeed": "0.18.0"}, "deepspeed"),
        ({"ops": []}, "ops"),
        ({"openmpi": "5.0.1 in /usr/local"}, "openmpi"),
        ({"openmpi": ""}, "openmpi"),
        ({"changed": "torch/version.py changed"}, "environment"),
        ({"environment": "cpu-9999 sha256 9999"}, "environment"),
        ({"mtu": 1400}, "mtu"),
        ({"shm": 64 << 20}, "shared memory"),
        ({"memlock": "64"}, "limit memlock"),
        ({"nofile": "1024"}, "limit nofile"),
        ({"clock": 300.0}, "clock"),
        ({"clock": -300.0}, "clock"),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value,
)
def test_the_one_that_differs_is_named_and_nothing_else(node, changes, name):
    assert failures(answers(node, **changes)) == [(name, node)]


def test_another_torch_is_no_news_of_the_environment_too():
    drifted = answers("b", torch="2.12.0", changed="torch/version.py changed", environment="other")
    assert failures(drifted) == [("torch", "b")]


def test_a_clock_is_wrong_only_beyond_what_the_way_there_took():
    assert failures(answers("b", clock=6.0, clock_error=3.0)) == []
    assert failures(answers("b", clock=6.0, clock_error=0.5)) == [("clock", "b")]


def test_another_kernel_is_a_warning():
    rows = check.check_results(answers("c", kernel="6.12.1"), "a")
    assert [(row["check"], row["node"], row["status"]) for row in rows if row["status"] != "ok"] == [
        ("kernel", "c", "warn")
    ]


def test_mixed_gpus_fail_unless_they_are_meant():
    found = answers("b", gpus=["2 x L40S"])
    for name in ("a", "c"):
        found[name]["measured"]["gpus"] = ["2 x H200"]
    assert failures(found) == [("gpus", "b")]
    assert failures(found, mixed_gpus=True) == []


def test_a_gpu_node_needs_more_shared_memory():
    found = answers()
    for answer in found.values():
        answer["measured"]["gpus"] = ["1 x H200"]
        answer["measured"]["shm"] = 512 << 20
    assert failures(found) == [("shared memory", name) for name in "abc"]


def test_ops_that_all_lack_fail_on_all():
    found = answers()
    for answer in found.values():
        answer["measured"]["ops"] = []
    assert failures(found) == [("ops", name) for name in "abc"]


def test_a_node_that_the_mesh_does_not_reach_fails_with_sshs_words():
    found = answers("b", words="Host key verification failed.")
    assert failures(found) == [("ssh from the head", "b")]
    assert "Host key verification failed." in check.check_table(check.check_results(found, "a"))


def test_the_table_says_node_value_and_fix():
    table = check.check_table(check.check_results(answers("b", mtu=1400), "a"))
    assert "  fail  mtu                b         1400, expected 1500\n        fix: " in table
    assert "  ok    torch              3 nodes   2.13.0+cpu" in table


def test_a_wrong_sum_fails():
    cluster = {"world_size": 3}
    right = {"result": {"sum": 6, "right_on": 3, "seconds": 0.01, "bytes": 4}}
    wrong = {"result": {"sum": 5, "right_on": 0, "seconds": 0.01, "bytes": 4}}
    assert check.all_reduce_result(right, cluster)["status"] == "ok"
    assert check.all_reduce_result(wrong, cluster)["status"] == "fail"
    assert check.all_reduce_result({"result": {}}, cluster)["measured"] == "no result"
    assert check.all_reduce_result({"result": {}}, cluster)["status"] == "fail"
    assert check.all_reduce_result({}, cluster)["status"] == "skip"


def test_torch_is_read_from_its_own_file_without_an_import(tmp_path):
    (tmp_path / "torch").mkdir()
    text = "__version__ = '2.13.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\ngit_version = 'x'\n"
    (tmp_path / "torch" / "version.py").write_text(text)
    assert module.torch_version(str(tmp_path)) == ("2.13.0+cu130", "13.0")
    assert module.torch_version(str(tmp_path / "none")) == ("", "")
