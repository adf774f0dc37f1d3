#!/usr/bin/python
"""Start, read and stop a run on the head, through the head's agent."""

from __future__ import absolute_import, division, print_function

DOCUMENTATION = r"""
module: trackside_run
short_description: Start, read and stop a run on the head
description:
  - Speaks to the agent on the head, as the training user.
  - C(started) starts the supervisor of a staged run detached, so that the run outlives this connection.
  - C(read) returns the state and the new lines of the merged output.
  - C(stopped) asks the supervisor to end the run and waits for the verdict.
options:
  state:
    description: What is wanted.
    type: str
    choices: [started, read, stopped]
    required: true
  run_dir:
    description: The run's folder.
    type: path
    required: true
  agent:
    description: The agent's entry script.
    type: path
    required: true
  user:
    description: The training user.
    type: str
    required: true
  offset:
    description: Bytes of the output already read.
    type: int
    default: 0
  grace:
    description: Seconds between the polite signal and SIGKILL.
    type: float
    default: 10
author: Trackside
"""
EXAMPLES = r"""
- name: Start the run
  trackside_run:
    state: started
    run_dir: /opt/trackside/runs/first
    agent: /opt/trackside/agent/agent.py
    user: trackside
"""
RETURN = r"""
run:
  description: The agent's answer.
  returned: success
  type: dict
"""

import json
import os
import resource
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trackside_users import run_as, user_entry

PYTHON = "/usr/bin/python3"
START_SECONDS = 20


def ask(module, *words):
    """Return the agent's answer to one command."""
    options = module.params
    _status, text, _words = run_as(module, options["user"], [PYTHON, options["agent"], *words])
    return json.loads(text.splitlines()[-1])


def unit_command(options, memlock, nofile):
    """Return the systemd-run command of the supervisor's unit: transient units bypass PAM, so limits are said."""
    return [
        "systemd-run",
        "--quiet",
        "--collect",
        "--unit=trackside-%s" % os.path.basename(options["run_dir"]),
        "--description=Trackside run %s" % os.path.basename(options["run_dir"]),
        "--uid=%s" % options["user"],
        "--property=KillMode=process",
        "--property=LimitMEMLOCK=%s" % memlock,
        "--property=LimitNOFILE=%s" % nofile,
        "--setenv=HOME=%s" % os.path.expanduser("~" + options["user"]),
        PYTHON,
        options["agent"],
        "supervise",
        options["run_dir"],
    ]


def start(module):
    """Start the supervisor in a unit of its own where systemd runs, else in a session of its own."""
    options = module.params
    entry = user_entry(module, options["user"])
    if os.path.isdir("/run/systemd/system"):
        hard = [resource.getrlimit(which)[1] for which in (resource.RLIMIT_MEMLOCK, resource.RLIMIT_NOFILE)]
        words = ["infinity" if value == resource.RLIM_INFINITY else str(value) for value in hard]
        module.run_command(unit_command(options, *words), check_rc=True)
    else:
        subprocess.Popen(
            [PYTHON, options["agent"], "supervise", options["run_dir"]],
            user=entry.pw_uid,
            group=entry.pw_gid,
            extra_groups=os.getgrouplist(options["user"], entry.pw_gid),
            cwd=options["run_dir"],
            env={"HOME": entry.pw_dir, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    answer = ask(module, "read", options["run_dir"])
    while answer["state"] == "staged" and time.monotonic() < deadline:
        time.sleep(0.2)
        answer = ask(module, "read", options["run_dir"])
    if answer["state"] == "staged":
        module.fail_json(msg="the run's supervisor did not start within %d s" % START_SECONDS)
    return {key: answer[key] for key in ("state",)}


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "read", "stopped"], "required": True},
            "run_dir": {"type": "path", "required": True},
            "agent": {"type": "path", "required": True},
            "user": {"type": "str", "required": True},
            "offset": {"type": "int", "default": 0},
            "grace": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    options = module.params
    folder = options["run_dir"]
    if not os.path.isdir(folder):
        if module.check_mode:
            module.exit_json(changed=options["state"] == "started", run={"state": "staged"})
        module.fail_json(msg="there is no run %s on the head: no folder %s" % (os.path.basename(folder), folder))
    if options["state"] == "read":
        module.exit_json(changed=False, run=ask(module, "read", folder, "--offset", str(options["offset"])))
    before = ask(module, "read", folder)
    wanted = before["state"] == ("staged" if options["state"] == "started" else "running") or (
        options["state"] == "stopped" and before["state"] == "lost"
    )
    if not wanted or module.check_mode:
        before.pop("text", None)
        module.exit_json(changed=wanted, run=before)
    if options["state"] == "started":
        module.exit_json(changed=True, run=start(module))
    module.exit_json(changed=True, run=ask(module, "stop", folder, "--grace", str(options["grace"])))


if __name__ == "__main__":
    main()
