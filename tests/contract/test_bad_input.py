"""Wrong input: a clear message, the right exit code, and no node touched."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACKSIDE = str(Path(sys.executable).parent / "trackside")


def trackside(*words):
    return subprocess.run([TRACKSIDE, *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def inventory(folder, text):
    path = folder / "hosts.yml"
    path.write_text(text)
    return str(path)


def test_no_such_inventory():
    done = trackside("setup", "-i", "nowhere")
    assert done.returncode == 2
    assert "no such inventory" in done.stderr


def test_no_such_script(tmp_path):
    hosts = inventory(tmp_path, "nodes: {hosts: {a: {ansible_host: 127.0.0.1}}}\n")
    done = trackside("train", "nothing.py", "-i", hosts)
    assert done.returncode == 2
    assert "no such script" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("nodes: {hosts: {}}\n", 2, "empty or missing"),
        ("others: {hosts: {a: {}}}\n", 2, "empty or missing"),
        ("nodes:\n  hosts:\n    a: {slots: 1}\n    a: {slots: 2}\n", 2, "line 4: a is given twice"),
        ("nodes: [a\n", 2, "line 2: this is not yaml"),
        ("nodes: {hosts: {a: {ansible_host: 1.2.3.4}, b: {ansible_host: 1.2.3.4}}}\n", 2, "same address"),
        ("nodes: {hosts: {a: {ansible_host: no-such-host.invalid}}}\n", 3, "does not resolve"),
        ("nodes: {hosts: {a: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n", 3, "nothing speaks ssh"),
    ],
)
def test_an_inventory_that_cannot_work(tmp_path, text, code, words):
    done = trackside("setup", "-i", inventory(tmp_path, text), "--json")
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout.lower() + done.stderr.lower()
    problem = json.loads(done.stdout)["problems"][0]
    assert problem["exit_code"] == code
    if code == 3:
        assert problem["node"] == "a"
        assert problem["fix"]


def test_print_command_is_ansible_playbook(tmp_path):
    done = trackside("setup", "-i", inventory(tmp_path, "nodes: {hosts: {a: {}}}\n"), "--print-command", "--check")
    assert done.returncode == 0
    assert "ansible-playbook -i" in done.stdout
    assert "--check" in done.stdout


def test_a_scripts_own_debug_is_its_own(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    hosts = inventory(tmp_path, "nodes: {hosts: {a: {}}}\n")
    done = trackside("train", str(script), "-i", hosts, "--print-command", "--", "--debug")
    assert '"run_arguments": ["--debug"]' in done.stdout
