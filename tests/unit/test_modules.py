"""The parts of modules and of the callback that decide, on what the tools really say."""

import threading
from pathlib import Path

import pytest
import trackside_check as check
import trackside_packages as packages
import trackside_push as push
import trackside_ssh_block as ssh_block
import trackside_work as work
from named_like_us import callback

# ds_report of DeepSpeed 0.19 on a CPU: its colours, its warnings, and a name that leaves no room for dots.
REPORT = """\
[2026-11-30 09:12:44,310] [INFO] [real_accelerator.py:239:get_accelerator] Setting ds_accelerator to cpu (override)
--------------------------------------------------
DeepSpeed C++/CUDA extension op report
--------------------------------------------------
JIT compiled ops requires ninja
ninja .................. \x1b[92m[OKAY]\x1b[0m
--------------------------------------------------
op name ................ installed .. compatible
--------------------------------------------------
\x1b[93m [WARNING] \x1b[0m async_io requires the dev libaio .so object and headers but these were not found.
async_io ............... \x1b[93m[NO]\x1b[0m ....... \x1b[93m[NO]\x1b[0m
deepspeed_not_implemented  \x1b[93m[NO]\x1b[0m ....... \x1b[92m[OKAY]\x1b[0m
deepspeed_ccl_comm ..... \x1b[93m[NO]\x1b[0m ....... \x1b[92m[OKAY]\x1b[0m
deepspeed_shm_comm ..... \x1b[92m[YES]\x1b[0m ...... \x1b[92m[OKAY]\x1b[0m
cpu_adam ............... \x1b[92m[YES]\x1b[0m ...... \x1b[92m[OKAY]\x1b[0m
--------------------------------------------------
DeepSpeed general environment info:
torch version .................... 2.13.0+cpu
"""


def test_ops_of_ds_report():
    assert check.report_ops(REPORT) == {
        "async_io": "incompatible",
        "deepspeed_ccl_comm": "compatible",
        "deepspeed_shm_comm": "installed",
        "cpu_adam": "installed",
    }


def test_platforms_end_at_the_nodes_glibc():
    tags = packages.platforms("x86_64", "2.17")
    assert tags[0] == "manylinux_2_17_x86_64"
    assert tags[-4:] == ["manylinux_2_5_x86_64", "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    assert "manylinux2014_aarch64" not in packages.platforms("aarch64", "2.16")


def test_the_users_own_lines_stay():
    own = "ssh-rsa AAA me@laptop\n"
    text, block = ssh_block.compose(own, ["new"], [])
    assert text == own + f"{ssh_block.BEGIN}\nnew\n{ssh_block.END}\n"
    assert block == ["new"]
    assert ssh_block.compose(text, ["new"], [])[0] == text
    assert ssh_block.compose(text + "later\n", [], [])[0] == own + "later\n"
    assert ssh_block.compose("", [], [])[0] == ""


def test_nodes_outside_of_the_limit_keep_their_lines():
    before, _ = ssh_block.compose("", ["a,10.0.0.1 t OLD", "[b]:2222,[10.0.0.2]:2222 t B", "gone,10.0.0.9 t G"], [])
    _, block = ssh_block.compose(before, ["a,10.0.0.1 t NEW"], ["a", "b"])
    assert block == ["[b]:2222,[10.0.0.2]:2222 t B", "a,10.0.0.1 t NEW"]


def test_push_of_a_folder(tmp_path):
    path = str(tmp_path)
    assert push.command(path, "b", ["logs"], dry_run=True) == [
        "rsync", "--archive", "--delete", "--itemize-changes", "--timeout=60", "--exclude=logs", "--dry-run",
        "--rsh=ssh -o BatchMode=yes -o ConnectTimeout=10", f"--rsync-path=mkdir -p '{path}' && rsync",
        f"{path}/", f"b:{path}/",
    ]  # fmt: skip


def test_push_of_a_file(tmp_path):
    path = tmp_path / "packages.tar"
    path.touch()
    argv = push.command(str(path), "b", [], dry_run=False)
    assert "--dry-run" not in argv
    assert argv[-3:] == [f"--rsync-path=mkdir -p '{tmp_path}' && rsync", str(path), f"b:{path}"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("ssh: Could not resolve hostname gpu7: Name or service not known", "does not resolve"),
        ("ssh: connect to host 10.0.0.9 port 22: Connection timed out", "does not answer"),
        ("ssh: connect to host 10.0.0.9 port 22: Operation timed out", "does not answer"),
        ("ssh: connect to host 10.0.0.9 port 22: No route to host", "does not answer"),
        ("Connection timed out during banner exchange", "does not answer"),
        ("ssh: connect to host 127.0.0.1 port 1: Connection refused", "nothing speaks ssh"),
        ("kex_exchange_identification: Connection closed by remote host", "nothing speaks ssh"),
        ('Load key "/k": bad permissions\nu@10.0.0.1: Permission denied (publickey,password).', "refuses the key"),
        ("Permission denied, please try again.", "refuses the key"),
        ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures", "refuses the key"),
        ("No ED25519 host key is known for 10.0.0.1 and you have requested strict checking.", "not the pinned one"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "not the pinned one"),
        ("/bin/sh: 1: /usr/bin/python3: not found", "has no Python"),
        ("The module interpreter '/usr/bin/python3' was not found.", "has no Python"),
        ("Missing sudo password", "may not become root"),
        ("Premature end of stream waiting for become success.\nsudo: a password is required", "may not become root"),
        ("trackside is not in the sudoers file.", "may not become root"),
        ("[Errno 28] No space left on device: '/opt/trackside/x'", "disk is full"),
    ],
)
def test_meaning_of_what_ssh_and_sudo_say(words, what):
    found = callback.meaning(words)
    assert found is not None
    assert what in found[0]


@pytest.mark.parametrize(
    "words", ["non-zero return code", "[Errno 13] Permission denied: '/opt/trackside'", "Read timed out."]
)
def test_other_words_are_left_as_they_are(words):
    assert callback.meaning(words) is None


@pytest.mark.parametrize("before", ["", "Task failed: ", "Task failed: Finalization of task args failed: "])
def test_ansibles_preamble_is_left_out(before):
    before += "Error while resolving 'a': The filter plugin 'b' failed: " if before.count(":") > 1 else ""
    assert callback.PREAMBLE.sub("", before + "node1 has no slots") == "node1 has no slots"


def test_a_failed_command_and_a_failed_loop_say_their_own_words():
    failed = {"failed": True, "_ansible_item_label": "node2", "item": {"name": "node2"}, "msg": "non-zero return code"}
    failed["stderr"] = "no route"
    assert callback.last_words(failed) == "non-zero return code\nno route"
    loop = {"msg": "One or more items failed", "results": [{"item": "node1", "failed": False, "msg": "fine"}, failed]}
    assert callback.last_words(loop) == "One or more items failed\nnode2: non-zero return code\nno route"


def test_a_workspace_removes_what_an_interrupted_one_left(tmp_path):
    left = tmp_path / ".install-left"
    left.mkdir()
    (left / "half").write_text("")
    (tmp_path / ".build-other").mkdir()
    with work.workspace(str(tmp_path), ".install-") as folder:
        assert not left.exists()
        assert Path(folder).stat().st_mode & 0o777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == [".build-other"]


def test_a_second_workspace_waits_for_the_first(tmp_path):
    order = []

    def second():
        with work.workspace(str(tmp_path), ".install-"):
            order.append("second")

    thread = threading.Thread(target=second)
    with work.workspace(str(tmp_path), ".install-") as folder:
        thread.start()
        thread.join(0.3)
        assert Path(folder).exists()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
