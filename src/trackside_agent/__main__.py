"""The agent's command line, one word per thing that a node is asked to do; answers are one JSON line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from trackside_agent import processes, rank, records, relay, supervise

READ_BYTES = 200_000


def read(run_dir: Path, offset: int) -> dict[str, object]:
    """Return the state, and the merged output's whole lines from byte `offset` on."""
    state = records.state_of(run_dir)  # before the text: what is final now has written all that it will
    try:
        with (run_dir / "output.log").open("rb") as stream:
            stream.seek(offset)
            text = stream.read(READ_BYTES)
    except FileNotFoundError:
        text = b""
    final = state["state"] in records.FINAL_STATES
    if len(text) == READ_BYTES or not final:
        whole = text.rfind(b"\n") + 1
        text = text[:whole] if whole or len(text) < READ_BYTES else text
    more = len(text) > 0
    return {**state, "text": text.decode(errors="replace"), "offset": offset + len(text), "more": more}


def finish(run_dir: Path, grace: float) -> dict[str, object]:
    """End what is left of the run on this node and return the records of its ranks."""
    request = records.read_request(run_dir)
    clean = processes.end(request["id"], grace)
    found = [records.read_json(path) for path in sorted((run_dir / "ranks").glob("[0-9]*.json"))]
    return {"clean": clean, "ranks": found}


def stop(run_dir: Path, grace: float) -> dict[str, object]:
    """Ask the run's supervisor to end it, and wait for the verdict; a lost run is ended from here."""
    request = records.read_request(run_dir)
    state = records.state_of(run_dir)
    if state["state"] == "running":
        records.write_json(run_dir / "stop.json", {"grace": grace})
        deadline = time.monotonic() + 2 * (grace + supervise.NODE_TIMEOUT_SECONDS)
        while state["state"] == "running" and time.monotonic() < deadline:
            time.sleep(0.2)
            state = records.state_of(run_dir)
    if state["state"] == "lost":
        answers = supervise.finish_all(request, grace)
        records.set_state(run_dir, "lost", reason=state.get("reason", ""))
        silent = [f"{node}: {answer['error']}" for node, answer in answers.items() if "error" in answer]
        return {**state, "left": silent}
    return {**state, "left": []}


def main(arguments: list[str]) -> int:
    """Run one command of the agent; DeepSpeed's launcher puts its `--local_rank=N` before our words."""
    if arguments[:1] == ["relay"]:
        return relay.main(arguments[1:])
    launcher_arguments = [a for a in arguments if a.startswith("--local_rank")]
    parser = argparse.ArgumentParser(prog="agent.py", description=__doc__)
    parser.add_argument("command", choices=["rank", "supervise", "finish", "read", "stop"])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--grace", type=float, default=0.0, help="seconds between the polite signal and SIGKILL")
    parser.add_argument("--offset", type=int, default=0, help="bytes of the output already read")
    options = parser.parse_args([a for a in arguments if a not in launcher_arguments])
    if options.command == "rank":
        return rank.main(options.run_dir, launcher_arguments)
    if options.command == "supervise":
        return supervise.main(options.run_dir)
    if options.command == "finish":
        answer = finish(options.run_dir, options.grace)
    elif options.command == "stop":
        answer = stop(options.run_dir, options.grace)
    else:
        answer = read(options.run_dir, options.offset)
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
