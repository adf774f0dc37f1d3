"""The nodes' images: `bare` is a fresh Debian with sshd, `prepared` is one that setup has been through."""

from __future__ import annotations

import hashlib
import http.client
import shlex
import subprocess
import tempfile
from pathlib import Path

from trackside.errors import NodeError
from trackside.local.engine import Engine, Say, cache_directory, require, tail

REPOSITORY = "localhost/trackside-node"
SUITE = "bookworm"
PACKAGES = (
    "systemd-sysv", "dbus", "dbus-user-session", "libpam-systemd", "openssh-server", "python3", "sudo",
    "iproute2", "iputils-ping", "ca-certificates", "procps",
)  # fmt: skip

# Removing policy-rc.d: Docker's Debian image forbids with it that an installed service starts.
INSIDE = """set -e
useradd --create-home --uid 1000 --shell /bin/bash admin
echo 'admin ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/admin
chmod 0440 /etc/sudoers.d/admin
rm -rf /etc/ssh/ssh_host_* /usr/sbin/policy-rc.d /var/lib/apt/lists/*
: > /etc/machine-id
"""

# An empty machine-id is filled in at the next boot; a missing one would make systemd take that for its first boot.
FORGET = """set -e
apt-get clean
rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* /home/admin/.ssh/authorized_keys /var/lib/systemd/random-seed
: > /etc/machine-id
"""


def bare_tag() -> str:
    """The tag changes with everything that the image is made of."""
    content = "\n".join((SUITE, *PACKAGES, INSIDE))
    return f"{REPOSITORY}:bare-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


def prepared_tag(key: str) -> str:
    return f"{REPOSITORY}:prepared-{key}"


def mmdebstrap_argv(target: Path) -> list[str]:
    return [
        "mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}",
        f'--customize-hook=chroot "$1" sh -c {shlex.quote(INSIDE)}', SUITE, str(target),
    ]  # fmt: skip


def commit_argv(container: str, tag: str) -> list[str]:
    # Labels are inherited by every container of the image; this one would make each belong to the cluster it came from.
    return ["commit", "--change", 'CMD ["/sbin/init"]', "--change", "LABEL org.trackside.cluster=", container, tag]


def ensure_bare(engine: Engine, say: Say) -> str:
    """Return the bare image's tag, making the image where it is missing."""
    tag = bare_tag()
    if engine.has_image(tag):
        return tag
    if _registry_answers():
        try:
            _from_registry(engine, tag, say)
        except NodeError as error:
            say(f"the registry's image was of no use, building one instead: {error.message}")
        else:
            return tag
    require("mmdebstrap", "mmdebstrap")
    say(f"building the nodes' image from Debian {SUITE}'s packages (about a minute, once)")
    cache_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        root = Path(scratch) / "root.tar"
        done = subprocess.run(mmdebstrap_argv(root), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode:
            raise NodeError(f"mmdebstrap could not build the nodes' image:\n{tail(done.stderr)}")
        engine.run(["import", "--change", 'CMD ["/sbin/init"]', str(root), tag], seconds=600)
    return tag


def _registry_answers() -> bool:
    connection = http.client.HTTPSConnection("registry-1.docker.io", timeout=3)
    try:
        connection.request("GET", "/v2/")
        # 401 is a registry's own greeting to someone without a token.
        return connection.getresponse().status in (http.client.OK, http.client.UNAUTHORIZED)
    except OSError:
        return False
    finally:
        connection.close()


def _from_registry(engine: Engine, tag: str, say: Say) -> None:
    source = f"docker.io/library/debian:{SUITE}"
    say(f"pulling {source}")
    engine.run(["pull", source], seconds=600)
    container = f"trackside-build-{tag.rpartition('-')[2]}"
    install = f"apt-get update\napt-get install --yes --no-install-recommends {' '.join(PACKAGES)}\napt-get clean\n"
    try:
        engine.run(
            [
                "run",
                "--name",
                container,
                "--env",
                "DEBIAN_FRONTEND=noninteractive",
                source,
                "sh",
                "-ec",
                install + INSIDE,
            ],
            seconds=900,
        )
        engine.run(commit_argv(container, tag), seconds=600)
    finally:
        engine.call(["rm", "--force", container])
