"""The container engine: which one, with which settings, and the one place that calls it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trackside.errors import InputError, NodeError

Program = Literal["podman", "docker"]
Say = Callable[[str], None]

PROGRAMS: tuple[Program, ...] = ("podman", "docker")
SYSTEMD_UP = ("running", "degraded")
TRIAL_SECONDS = 20


@dataclass(frozen=True)
class Settings:
    """What an engine needs on this machine: podman a containers.conf, docker more arguments to create a node."""

    conf: str = ""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Engine:
    """One container engine with the settings it is to run under."""

    program: Program
    arguments: tuple[str, ...] = ()
    conf: Path | None = None

    def call(
        self, arguments: Sequence[str], data: bytes | None = None, seconds: float = 120
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the engine and hand back whatever came of it."""
        environment = {"CONTAINERS_CONF": str(self.conf)} if self.conf else {}
        argv = [self.program, *arguments]
        try:
            # An empty input, not ours: the engine must never read the terminal of the person who typed the command.
            return subprocess.run(
                argv, input=data or b"", capture_output=True, timeout=seconds, check=False, env=os.environ | environment
            )
        except subprocess.TimeoutExpired as error:
            raise NodeError(f"`{' '.join(argv)}` did not end within {seconds:.0f} s") from error

    def run(self, arguments: Sequence[str], data: bytes | None = None, seconds: float = 120) -> str:
        """Run the engine and return what it printed; NodeError where it fails."""
        done = self.call(arguments, data, seconds)
        if done.returncode:
            raise NodeError(f"`{self.program} {' '.join(arguments)}` failed:\n{tail(done.stderr)}")
        return done.stdout.decode(errors="replace")

    def has_image(self, tag: str) -> bool:
        """Whether the engine's store holds the image."""
        return self.call(["image", "inspect", tag]).returncode == 0

    def remove_container(self, name: str) -> None:
        """Remove a container at once: it has nothing to save, and systemd would take its ten seconds."""
        at_once = ["--time", "0"] if self.program == "podman" else []
        self.run(["rm", "--force", "--volumes", *at_once, name])

    def systemd_state(self, container: str) -> str:
        """`systemctl is-system-running` of the container, or "" where nothing answers yet."""
        return self.call(["exec", container, "systemctl", "is-system-running"]).stdout.decode().strip()


def tail(output: bytes, lines: int = 8) -> str:
    return "\n".join(output.decode(errors="replace").strip().splitlines()[-lines:])


def require(program: str, package: str) -> None:
    """InputError, naming what to install, where a program is missing."""
    if not shutil.which(program):
        raise InputError(f"{program} is not installed", f"sudo apt-get install {package}")


def cache_directory() -> Path:
    """$TRACKSIDE_CACHE, else trackside in the user's cache directory."""
    if own := os.environ.get("TRACKSIDE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trackside"


def hard_limits() -> dict[str, int]:
    """The hard limits that podman's defaults want to raise."""
    # Podman lowers its own nproc to pid_max (containers/common, getDefaultProcessLimits): more is then refused.
    most_processes = int(Path("/proc/sys/kernel/pid_max").read_text())
    nproc = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return {
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "nproc": most_processes if nproc == resource.RLIM_INFINITY else min(nproc, most_processes),
    }


def candidates(program: Program, limits: dict[str, int]) -> list[Settings]:
    """The settings to try, in order; the first is the engine's own defaults (podman) or no privilege (docker)."""
    if program == "docker":
        # writable-cgroups needs Docker 28 (moby#48828); before it, only --privileged makes /sys/fs/cgroup writable
        # without handing the host's whole hierarchy in.
        return [
            Settings(arguments=("--security-opt", "writable-cgroups=true")),
            Settings(arguments=("--privileged",)),
        ]
    # crun refuses hybrid cgroups, and there may be no systemd to manage cgroups or to take events.
    engine = '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
    # Without CAP_SYS_RESOURCE the default limits, above the hard ones, fail: setrlimit: Operation not permitted.
    finite = [f'"{name}={value}:{value}"' for name, value in limits.items() if value != resource.RLIM_INFINITY]
    return [
        Settings(),
        Settings(conf=engine),
        Settings(conf=f"[containers]\ndefault_ulimits = [{', '.join(finite)}]\n{engine}"),
    ]


def systemd_argv(engine: Engine) -> list[str]:
    """Arguments of `create` and `run` that make systemd work as process 1."""
    if engine.program == "podman":
        return ["--systemd=always"]
    return [
        "--cgroupns=private", "--tmpfs", "/run", "--tmpfs", "/run/lock",
        "--env", "container=docker", "--stop-signal", "SIGRTMIN+3", *engine.arguments,
    ]  # fmt: skip


def trial_argv(engine: Engine, container: str, image: str) -> list[str]:
    return ["run", "--detach", "--name", container, "--network", "none", *systemd_argv(engine), image, "/sbin/init"]


def _trial(engine: Engine, image: str) -> None:
    """Boot one container for a moment; NodeError where systemd does not come up."""
    container = f"trackside-trial-{os.getpid()}"
    state = ""
    try:
        engine.run(trial_argv(engine, container, image))
        end = time.monotonic() + TRIAL_SECONDS
        while (state := engine.systemd_state(container)) not in SYSTEMD_UP:
            if time.monotonic() > end:
                raise NodeError(f"systemd did not come up within {TRIAL_SECONDS} s (state: {state or 'no answer'})")
            time.sleep(0.1)
    finally:
        engine.call(["rm", "--force", container])


def _engines() -> Iterator[tuple[Program, int, Engine]]:
    """Every engine with every setting, in the order to try them."""
    for program in PROGRAMS:
        if not shutil.which(program):
            continue
        for index, settings in enumerate(candidates(program, hard_limits())):
            conf = None
            if settings.conf:
                conf = cache_directory() / f"containers-{index + 1}.conf"
                conf.parent.mkdir(parents=True, exist_ok=True)
                # Left alone where it is right: another process may be reading it.
                if not conf.is_file() or conf.read_text() != settings.conf:
                    conf.write_text(settings.conf)
            yield program, index, Engine(program, settings.arguments, conf)


def _key() -> str:
    """Changes with everything that the finding depends on: a shell with other limits needs another trial."""
    tried = [[program, repr(candidates(program, hard_limits()))] for program in PROGRAMS if shutil.which(program)]
    return hashlib.sha256(json.dumps(tried).encode()).hexdigest()[:12]


def known_engine() -> Engine | None:
    """The engine that an earlier trial found, with its containers.conf in place."""
    record = cache_directory() / "engine.json"
    found = json.loads(record.read_text()) if record.is_file() else {}
    if found.get("key") != _key():
        return None
    for program, index, engine in _engines():
        if [program, index] == [found["program"], found["settings"]]:
            return engine
    return None


def any_engine() -> Engine | None:
    """The known engine, or the first installed one: enough to list and to remove."""
    return known_engine() or next((engine for _, _, engine in _engines()), None)


def find_engine(image: Callable[[Engine], str], say: Say) -> Engine:
    """The first engine and settings under which a container of `image(engine)` really boots; found once, then cached.

    Raises InputError where no engine is installed or root is needed, NodeError with every reason where none works.
    """
    if known := known_engine():
        return known
    reasons: list[str] = []
    useless: set[Program] = set()
    for program, index, engine in _engines():
        if program in useless:
            continue
        if program == "podman" and os.geteuid() != 0:
            useless.add(program)
            reasons.append("podman: without root its network does not reach from this machine to the nodes")
            continue
        if (version := engine.call(["version"])).returncode:
            useless.add(program)
            reasons.append(f"{program}: {tail(version.stderr, 2)}")
            continue
        tag = image(engine)
        try:
            _trial(engine, tag)
        except NodeError as error:
            reasons.append(f"{program}, settings {index + 1}: {error.message}")
            continue
        say(f"{program} works" + (f" with {engine.conf}" if engine.conf else ""))
        found = {"key": _key(), "program": program, "settings": index}
        (cache_directory() / "engine.json").write_text(json.dumps(found) + "\n")
        return engine
    if not reasons:
        raise InputError("neither podman nor docker is installed", "sudo apt-get install podman")
    listed = "no container engine works here:\n  " + "\n  ".join(reasons)
    if os.geteuid() != 0:
        raise InputError(listed, "run the command with sudo")
    raise NodeError(listed)
