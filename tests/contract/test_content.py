"""What the parts promise each other."""

import ast
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


@pytest.mark.parametrize("role", ROLES, ids=lambda path: path.name)
def test_every_role_has_a_readme(role):
    assert (role / "README.md").read_text().startswith(f"# {role.name}\n")


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


def test_the_wheel_is_enough_to_work(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    wheel = next(tmp_path.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "in")], check=True)
    content = tmp_path / "in" / "trackside" / "content"
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
