"""Acting as the training user from a module that runs as root."""

from __future__ import absolute_import, division, print_function

import os
import pwd
import subprocess


def user_entry(module, name):
    """Return the passwd entry of `name`; the module fails with a sentence when there is none."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        module.fail_json(msg="there is no user %r on this node: run `trackside setup` first" % name)


def run_as(module, name, command, environment=None, cwd=None, check=True, timeout=None, text=None):
    """Run `command` as `name`, with that user's groups and home and none of root's variables.

    The command reads `text`, or nothing. Returns (status, stdout, stderr). With `check` a status other than 0 fails the
    module with the command's own last lines.
    """
    entry = user_entry(module, name)
    variables = {
        "HOME": entry.pw_dir,
        "USER": name,
        "LOGNAME": name,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "XDG_RUNTIME_DIR": "/run/user/%d" % entry.pw_uid,
    }
    variables.update(environment or {})
    identity = {}
    if os.geteuid() != entry.pw_uid:
        identity = {
            "user": entry.pw_uid,
            "group": entry.pw_gid,
            "extra_groups": os.getgrouplist(name, entry.pw_gid),
        }
    try:
        done = subprocess.run(
            command,
            env=variables,
            cwd=cwd or entry.pw_dir,
            input=text or "",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            errors="replace",
            timeout=timeout,
            check=False,
            **identity,
        )
    except FileNotFoundError as missing:
        module.fail_json(msg="cannot run %s: %s" % (command[0], missing))
    except subprocess.TimeoutExpired:
        module.fail_json(msg="%s did not end within %d s" % (" ".join(command), timeout))
    if check and done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-15:]
        module.fail_json(
            msg="%s ended with exit status %d: %s" % (" ".join(command[:6]), done.returncode, "\n".join(last)),
            cmd=command,
            stdout=done.stdout,
            stderr=done.stderr,
        )
    return done.returncode, done.stdout, done.stderr


def make_folders(path, uid, gid, mode=0o755):
    """Make `path` and its missing parents, the new ones owned by `uid` and `gid`."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(folder)
        os.chmod(folder, mode)
        os.chown(folder, uid, gid)
