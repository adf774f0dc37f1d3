"""Stacks and their locks: how they are read, and which nodes they are refused on."""

import hashlib
import importlib
from pathlib import Path

import pytest
import trackside_env as env
import trackside_lock as lock
import trackside_markers as markers
import trackside_resolve as resolve
import yaml
from ansible.errors import AnsibleFilterError

trackside_stack = importlib.import_module("trackside_stack")
STACKS = Path(__file__).parents[2] / "roles" / "python_env" / "files" / "stacks"
HASH = f"    --hash=sha256:{'0' * 64}\n"
TEXT = (
    "# made by hand\n"
    f"Some_Thing==1.0 \\\n{HASH}"
    f"markupsafe==3.0.2 ; platform_machine == 'aarch64' \\\n{HASH}"
    f"numpy==2.2.0 ; python_full_version < '3.12' \\\n{HASH}"
    f"numpy==2.3.0 ; python_full_version >= '3.12' \\\n{HASH}"
)


def data(name):
    path = STACKS / f"{name}.yml"
    return trackside_stack.stack(yaml.safe_load(path.read_text()), str(path))


def gpu_node(**changes):
    node = {
        "python": "3.12",
        "architecture": "x86_64",
        "gpus": ["NVIDIA H200"],
        "driver": {"loaded": "580.159.03"},
        "compute_capabilities": ["9.0"],
    }
    return {**node, **changes}


def refusals(name, source="controller", **changes):
    return "; ".join(trackside_stack.stack_refusals(data(name), gpu_node(**changes), "/usr/bin/python3", source))


def test_a_lock_is_read_by_package():
    found = list(lock.entries(TEXT))
    assert [entry[:3] for entry in found][:2] == [
        ("some-thing", "1.0", ""),
        ("markupsafe", "3.0.2", "platform_machine == 'aarch64'"),
    ]
    assert lock.select(TEXT, names=["some-thing"]) == f"Some_Thing==1.0 \\\n{HASH}"
    assert "some" not in lock.select(TEXT, without=["some-thing"]).lower()


@pytest.mark.parametrize("line", ["torch>=2", "--index-url http://x", "    --hash=sha256:short"])
def test_what_is_neither_package_nor_hash_is_named_by_its_line(line):
    with pytest.raises(ValueError, match="line 3 of the lock"):
        list(lock.entries(f"a==1 \\\n{HASH}{line}\n"))


def test_markers_choose_what_a_node_wants():
    chosen = lock.select(TEXT, holds=markers.holds_for("3.11", "x86_64"))
    assert lock.locked_versions(chosen) == {"some-thing": "1.0", "numpy": "2.2.0"}
    chosen = lock.select(TEXT, holds=markers.holds_for("3.13", "aarch64"))
    assert lock.locked_versions(chosen) == {"some-thing": "1.0", "markupsafe": "3.0.2", "numpy": "2.3.0"}


def test_a_marker_stays_only_where_it_tells_the_nodes_apart():
    narrow = markers.narrowed(TEXT, [("3.12", "x86_64"), ("3.13", "x86_64")])
    assert [entry[:3] for entry in lock.entries(narrow)] == [("some-thing", "1.0", ""), ("numpy", "2.3.0", "")]
    wide = markers.narrowed(TEXT, [("3.11", "x86_64"), ("3.12", "x86_64")])
    assert [entry[1] for entry in lock.entries(wide)] == ["1.0", "2.2.0", "2.3.0"]


@pytest.mark.parametrize("path", sorted(STACKS.glob("*.yml")), ids=lambda path: path.stem)
def test_every_lock_is_sealed_and_matches_its_pins(path):
    found = data(path.stem)
    text = path.with_suffix(".lock").read_text()
    assert trackside_stack.lock_problem(text, path.stem) == ""
    options = {"title": f"The lock of the stack {path.stem}", "stack_lock": "", **found}
    assert text.startswith(resolve.made_from(options)), "made from other requirements: make it anew"
    for python in found["python"]:
        for architecture in found["architectures"]:
            holds = markers.holds_for(python, architecture)
            versions = lock.locked_versions(lock.select(text, holds=holds))
            assert versions["torch"].split("+")[0] == found["versions"]["torch"].split("+")[0]
            assert versions["deepspeed"] == found["versions"]["deepspeed"]
            assert "uv" in versions
            assert set(found["sources"]) <= versions.keys()
            nccl = [version for name, version in versions.items() if name.startswith("nvidia-nccl-cu")]
            assert nccl == ([found["versions"]["nccl"]] if found["cuda"] else [])
            if found["cuda"] and found["cuda"]["toolkit"] == "wheels":
                assert versions["nvidia-cuda-nvcc"].startswith(found["cuda"]["version"])


def test_a_lock_edited_by_hand_is_refused():
    text = (STACKS / "cpu.lock").read_text()
    assert "edited by hand" in trackside_stack.lock_problem(text.replace("einops==", "einops== "), "cpu")
    assert "does not say what made it" in trackside_stack.lock_problem(text.partition("\n")[2], "cpu")
    assert "has no lock" in trackside_stack.lock_problem("", "mine")
    body = "a==1\n"
    assert trackside_stack.lock_problem(f"# x, sha256 {hashlib.sha256(body.encode()).hexdigest()}\n{body}", "x") == ""


def test_a_stack_that_is_wrong_says_every_field():
    right = yaml.safe_load((STACKS / "cu130.yml").read_text())
    wrong = {**right, "name": "other", "python": "3.11", "speed": 1, "cuda": {**right["cuda"], "toolkit": "magic"}}
    del wrong["ops"]
    with pytest.raises(AnsibleFilterError) as caught:
        trackside_stack.stack(wrong, "stacks/cu130.yml")
    words = str(caught.value)
    for part in ("ops is missing", "speed is unknown", "python has to be a list", "'other'", "toolkit is 'magic'"):
        assert part in words
    with pytest.raises(AnsibleFilterError, match="has to be a mapping"):
        trackside_stack.stack(["x"], "stacks/x.yml")


def test_a_node_that_fits_is_not_refused():
    assert refusals("cu130") == ""
    assert refusals("cpu", gpus=[], python="3.11") == ""


@pytest.mark.parametrize(
    ("stack", "changes", "words"),
    [
        (
            "cu130",
            {"driver": {"loaded": "570.86.15"}},
            "its driver is 570.86.15, CUDA 13.0 of the stack cu130 needs 580",
        ),
        ("cu130", {"python": "3.9"}, "/usr/bin/python3 is Python 3.9, the stack cu130 is locked for 3.11"),
        ("cu130", {"python": ""}, "of no version"),
        ("cu130", {"architecture": "riscv64"}, "its processor is riscv64"),
        ("cu130", {"compute_capabilities": ["7.0"]}, "compute capability 7.0"),
        ("cu130", {"gpus": [], "driver": {"message": "couldn't communicate"}}, "couldn't communicate"),
        ("cu130", {"gpus": [], "driver": {}}, "nvidia-smi names none"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_with_the_reason(stack, changes, words):
    assert words in refusals(stack, **changes)


def test_an_older_cuda_takes_the_older_driver():
    assert refusals("cu128", driver={"loaded": "570.86.15"}) == ""


def test_an_environment_of_the_users_own_may_have_any_python():
    assert refusals("cpu", source="existing", python="3.9") == ""


def test_binary_code_runs_on_its_own_major_from_its_minor_on():
    assert trackside_stack.runs_on("8.9", ["8.6", "9.0"])
    assert not trackside_stack.runs_on("8.0", ["8.6"])
    assert not trackside_stack.runs_on("12.0", ["9.0", "10.0"])


def test_mixed_gpus_are_said_by_node():
    same = {"a": gpu_node(), "b": gpu_node()}
    assert trackside_stack.mixed_gpus(same) == ""
    mixed = {**same, "b": gpu_node(gpus=["NVIDIA L40S"])}
    assert "a has NVIDIA H200, b has NVIDIA L40S" in trackside_stack.mixed_gpus(mixed)


def test_the_arch_list_is_that_of_the_gpus_found():
    found = trackside_stack.cuda_environment(data("cu130"), "/e", "3.12", ["9.0", "12.0", "9.0"])
    assert found == {
        "CUDA_HOME": "/e/lib/python3.12/site-packages/nvidia/cu13",
        "TORCH_CUDA_ARCH_LIST": "9.0;12.0",
    }
    found = trackside_stack.cuda_environment(data("cu128"), "/e", "3.12", ["9.0"])
    assert found["CUDA_HOME"] == "/usr/local/cuda-12.8"
    assert trackside_stack.cuda_environment(data("cpu"), "/e", "3.12", []) == {}


def test_requirements_are_packages_alone():
    assert trackside_stack.requirement_lines("# my own\npandas>=2 # tables\n\nnltk\n") == ["pandas>=2", "nltk"]
    with pytest.raises(AnsibleFilterError, match=r"--index-url"):
        trackside_stack.requirement_lines("--index-url https://x\n")


def make_env(root, name, stamped=True):
    (root / name / "lib").mkdir(parents=True)
    (root / name / "lib" / "x.py").write_text(name)
    if stamped:
        (root / name / env.STAMP).write_text(f'{{"quick": "{env.quick_digest(str(root / name / "lib"))}"}}')
    return root / name


def test_an_environment_that_was_changed_or_interrupted_is_not_whole(tmp_path):
    one = make_env(tmp_path, "one")
    assert env.whole(str(one))
    (one / "lib" / "x.py").write_text("edited")
    assert not env.whole(str(one))
    assert not env.whole(str(make_env(tmp_path, "two", stamped=False)))


def test_the_links_name_the_environment_in_use_and_the_one_before(tmp_path):
    root, link = tmp_path / "envs", tmp_path / "env"
    options = {"root": str(root), "link": str(link), "keep": 2}
    owner = type("Entry", (), {"pw_uid": -1, "pw_gid": -1})
    for name in ("one", "two", "three"):
        env.use(options, str(make_env(root, name)), owner)
    assert env.led_to(str(link))["name"] == "three"
    assert env.led_to(f"{link}.previous")["name"] == "two"
    assert sorted(path.name for path in root.iterdir()) == ["three", "two"]
    env.use(options, str(root / "two"), owner)
    assert (env.led_to(str(link))["name"], env.led_to(f"{link}.previous")["name"]) == ("two", "three")


def test_cuda_libraries_get_the_names_that_a_linker_looks_for(tmp_path):
    lib = tmp_path / "lib" / "python3.12" / "site-packages" / "nvidia" / "cu13" / "lib"
    lib.mkdir(parents=True)
    (lib / "libcudart.so.13").write_text("")
    env.link_cuda(str(tmp_path))
    env.link_cuda(str(tmp_path))
    assert (lib / "libcudart.so").readlink() == Path("libcudart.so.13")
    assert (lib.parent / "lib64").readlink() == Path("lib")
