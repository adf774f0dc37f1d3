"""The agent on this machine, with real processes."""

import json
import os
import subprocess
import sys
import time

import pytest

from trackside_agent import __main__ as agent
from trackside_agent import processes, rank, records, supervise

NODES = [{"name": "a", "slots": 2, "interface": "eth0"}, {"name": "b", "slots": 1, "interface": ""}]
REQUEST = {
    "id": "r1",
    "nodes": NODES,
    "world_size": 3,
    "master_addr": "10.0.0.1",
    "master_port": 29500,
    "output_dir": "/out",
    "environment": {"NCCL_DEBUG": "WARN"},
}


def ranks(*codes):
    return {"a": {"clean": True, "ranks": [{"rank": n, "host": "a", "returncode": c} for n, c in enumerate(codes)]}}


def test_openmpi_names_become_torchs():
    names = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3"}
    found = rank.rank_environment(REQUEST, names)
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == ("1", "1", "3")
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert found["NCCL_DEBUG"] == "WARN"


def test_deepspeeds_names_stay_and_the_request_counts_last():
    names = {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "7", "NCCL_DEBUG": "INFO"}
    found = rank.rank_environment({**REQUEST, "data_dir": "/data"}, names)
    assert (found["RANK"], found["LOCAL_WORLD_SIZE"], found["NCCL_DEBUG"]) == ("2", "1", "WARN")
    assert "GLOO_SOCKET_IFNAME" not in found
    assert found[processes.RUN_VARIABLE] == "r1"
    assert (found["TRACKSIDE_OUTPUT"], found["TRACKSIDE_DATA"]) == ("/out", "/data")


def test_without_a_launcher_there_is_no_rank():
    with pytest.raises(SystemExit, match="launcher"):
        rank.rank_environment(REQUEST, {})


def test_ranks_fill_the_slots_in_order():
    assert [rank.node_of(REQUEST, n)["name"] for n in range(3)] == ["a", "a", "b"]
    with pytest.raises(SystemExit, match="beyond"):
        rank.node_of(REQUEST, 3)


@pytest.mark.parametrize(
    ("status", "finished", "state", "words"),
    [
        (0, ranks(0, 0, 0), "succeeded", "every rank"),
        (0, ranks(0, 1, 0), "failed", "rank 1 on a ended with exit status 1"),
        (0, ranks(0, -9, 0), "failed", "killed by SIGKILL"),
        (0, ranks(0, -40, 0), "failed", "killed by signal 40"),
        (0, {}, "failed", "rank 0 never started (launcher's exit status 0)"),
        (0, ranks(0, 0), "failed", "rank 2 never started"),
        (0, ranks(0, 0, None), "failed", "without a word"),
        (5, ranks(0, 0, 0), "failed", "exit status is 5"),
        (0, {"a": {"error": "no route"}}, "failed", "no route"),
        (0, {"a": {"clean": False, "ranks": []}}, "failed", "left on a"),
    ],
)
def test_success_needs_every_ranks_own_zero(status, finished, state, words):
    found, reason = supervise.verdict(REQUEST, status, finished)
    assert found == state
    assert words in reason


def test_the_rank_that_failed_first_is_the_reason():
    answers = ranks(1, -15, 1)
    for record, ended in zip(answers["a"]["ranks"], (12.0, 13.0, 11.0), strict=True):
        record["ended"] = ended
    assert supervise.verdict(REQUEST, 1, answers)[1] == "rank 2 on a ended with exit status 1"


def test_command_that_ends_a_run_on_a_node():
    request = {"agent": "/opt/trackside/agent/agent.py", "run_dir": "/opt/trackside/runs/r1"}
    assert supervise.node_command(request, "b", 2.5) == [
        "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "b", "/usr/bin/python3",
        "/opt/trackside/agent/agent.py", "finish", "/opt/trackside/runs/r1", "--grace", "2.5",
    ]  # fmt: skip


def test_command_that_enters_the_runs_slice():
    assert processes.scope_command("mlp-1", 2, ["python", "agent.py"]) == [
        "systemd-run", "--user", "--scope", "--quiet", "--collect", "--slice=trackside-mlp.1.slice",
        f"--unit=trackside-mlp-1-rank2-{os.getpid()}", "--", "python", "agent.py",
    ]  # fmt: skip


def test_two_runs_never_share_a_slice():
    assert processes.slice_name("mlp-1") != processes.slice_name("mlp_1")


def test_a_run_that_no_one_started_is_staged_and_a_verdict_stays(tmp_path):
    assert records.state_of(tmp_path)["state"] == "staged"
    records.set_state(tmp_path, "failed", reason="rank 1", pid=0)
    assert records.state_of(tmp_path)["reason"] == "rank 1"


def test_a_folder_without_a_request_is_no_run(tmp_path):
    with pytest.raises(SystemExit, match=r"no request\.json"):
        records.read_request(tmp_path)


def test_reading_ends_at_whole_lines_until_the_run_has_ended(tmp_path):
    (tmp_path / "output.log").write_bytes(b"one\ntw")
    assert agent.read(tmp_path, 0)["text"] == "one\n"
    assert agent.read(tmp_path, 4)["text"] == ""
    records.set_state(tmp_path, "succeeded")
    last = agent.read(tmp_path, 4)
    assert (last["text"], last["offset"], last["more"]) == ("tw", 6, True)


def test_a_run_without_its_supervisor_is_lost(tmp_path):
    records.set_state(tmp_path, "running", pid=os.getpid())
    assert records.state_of(tmp_path)["state"] == "lost"


def test_the_polite_signal_comes_first_and_reaches_only_this_run(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "user_manager", lambda: None)  # these are in no slice, with systemd or without
    program = (
        "import pathlib, signal, sys, time; here = pathlib.Path(sys.argv[1]); "
        "signal.signal(signal.SIGTERM, lambda *_: (here.with_suffix('.saved').touch(), sys.exit(3))); "
        "here.touch(); time.sleep(600)"
    )
    started = {}
    for name in ("mine", "other"):
        environment = {**os.environ, processes.RUN_VARIABLE: f"{name}-{os.getpid()}"}
        started[name] = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / name)], env=environment)
    while not all((tmp_path / name).exists() for name in started):
        time.sleep(0.05)
    assert processes.end(f"mine-{os.getpid()}", grace=5)
    assert started["mine"].wait(5) == 3
    assert (tmp_path / "mine.saved").exists()
    assert started["other"].poll() is None
    assert processes.end(f"other-{os.getpid()}", grace=0)
    assert started["other"].wait(5) == -9
    assert not (tmp_path / "other.saved").exists()


def test_the_end_reaches_sessions_and_the_stubborn(tmp_path):
    program = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
        "open(sys.argv[1], 'w').close(); time.sleep(600)"
    )
    run_id = f"test-{os.getpid()}"
    ready = tmp_path / "ready"
    environment = {**os.environ, processes.RUN_VARIABLE: run_id}
    parent = subprocess.Popen([sys.executable, "-c", program, str(ready)], env=environment)
    while not ready.exists():
        time.sleep(0.05)
    assert len(processes.pids_of(run_id)) == 2
    assert processes.end(run_id, grace=0.3)
    assert parent.wait(5) == -9
    assert processes.pids_of(run_id) == []


@pytest.mark.parametrize(
    ("source", "recorded", "returned"),
    [("print('hi')", 0, 0), ("raise SystemExit(7)", 7, 7), ("import os; os.kill(os.getpid(), 9)", -9, 137)],
)
def test_the_rank_program_records_the_scripts_own_end(tmp_path, source, recorded, returned):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(source)
    request = {
        **REQUEST,
        "python": sys.executable,
        "script": "job.py",
        "arguments": [],
        "code_dir": str(tmp_path / "code"),
        "output_dir": str(tmp_path / "output"),
    }
    records.write_json(tmp_path / "request.json", request, 0o600)
    environment = {
        **os.environ,
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        rank.SCOPED: "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "trackside_agent", "--local_rank=0", "rank", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == returned
    assert json.loads((tmp_path / "ranks" / "2.json").read_text())["returncode"] == recorded
    assert (tmp_path / "logs" / "rank2.log").read_text() == done.stdout
