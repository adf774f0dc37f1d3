"""What the parts promise each other."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())
PLAYBOOKS = sorted((ROOT / "playbooks").glob("*.yml"))
BIN = Path(sys.executable).parent


@pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)
def test_defaults_and_argument_specs_are_equal(role):
    defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text()) or {}
    specs = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    described = {n: o["default"] for n, o in specs["main"]["options"].items() if not o.get("required")}
    assert defaults == described
    assert all(name.startswith(f"{role.name}_") for name in defaults)


@pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)
def test_every_role_has_a_readme_that_explains_its_variables(role):
    text = (role / "README.md").read_text()
    assert text.startswith(f"# {role.name}\n")
    for spec in yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"].values():
        for name, option in spec["options"].items():
            meaning = re.sub(r"C\((.*?)\)", r"`\1`", option["description"].strip())
            assert f"- `{name}`: {meaning}\n" in text


@pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)
def test_every_variable_has_a_type_and_a_meaning(role):
    for spec in yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())["argument_specs"].values():
        for name, option in spec["options"].items():
            assert {"type", "description"} <= option.keys(), name


@pytest.mark.parametrize("playbook", PLAYBOOKS, ids=lambda path: path.name)
def test_playbooks_pass_the_syntax_check(playbook):
    command = [str(BIN / "ansible-playbook"), "--syntax-check", "-i", "inventory/example/hosts.yml", str(playbook)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted((ROOT / "src" / "trackside_agent").glob("*.py")), ids=lambda path: path.name)
def test_the_agent_is_standard_library_only_and_runs_on_python_39(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in {*sys.stdlib_module_names, "trackside_agent"}


@pytest.mark.parametrize("file", sorted((ROOT / "plugins" / "modules").glob("*.py")), ids=lambda path: path.name)
def test_every_module_is_documented_with_the_options_it_takes(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 9))
    texts = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    specs = [
        ast.literal_eval(keyword.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "argument_spec"
    ]
    documentation = yaml.safe_load(texts["DOCUMENTATION"])
    assert documentation["module"] == file.stem
    assert yaml.safe_load(texts["EXAMPLES"])
    for name, option in specs[0].items():
        described = documentation["options"][name]
        assert option["type"] == described["type"], name
        assert option.get("default") == described.get("default"), name
        assert option.get("required", False) == described.get("required", False), name
    assert documentation.get("options", {}).keys() == specs[0].keys()


def test_the_wheel_is_enough_to_work(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    wheel = next(tmp_path.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "in")], check=True)
    content = tmp_path / "in" / "trackside" / "content"
    assert (content / "playbooks" / "setup.yml").exists()
    assert (content / "train" / "mlp.py").exists()
    assert (content / "src" / "trackside_agent" / "rank.py").exists()
    command = [
        str(BIN / "ansible-playbook"),
        "--syntax-check",
        "-i",
        "inventory/example/hosts.yml",
        "playbooks/setup.yml",
    ]
    done = subprocess.run(command, cwd=content, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
