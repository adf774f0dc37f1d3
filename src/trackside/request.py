"""One run of a playbook as a value, and the command that it stands for."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackside import content
from trackside.errors import InputError


@dataclass(frozen=True)
class Request:
    """What is asked of Ansible. `variables` hold only what the person said: every default is a role's."""

    verb: str
    inventory: Path
    variables: dict[str, Any] = field(default_factory=dict)
    limit: str = ""
    tags: str = ""
    check: bool = False
    ask_become_pass: bool = False
    vault_password_file: str = ""
    verbosity: int = 0


def options(request: Request) -> list[str]:
    """Return ansible-playbook's options for the request, without playbook, inventory and variables."""
    words = ["--check"] if request.check else []
    words += ["--limit", f"{request.limit},localhost"] if request.limit else []
    words += ["--tags", request.tags] if request.tags else []
    words += ["--ask-become-pass"] if request.ask_become_pass else []
    words += (
        ["--vault-password-file", str(Path(request.vault_password_file).resolve())]
        if request.vault_password_file
        else []
    )
    words += [f"-{'v' * request.verbosity}"] if request.verbosity else []
    return words


def command(request: Request) -> list[str]:
    """Return the ansible-playbook command line that does the same without this package."""
    words = ["ansible-playbook", "-i", str(request.inventory), str(content.playbook(request.verb)), *options(request)]
    if request.variables:
        words += ["-e", json.dumps(request.variables, sort_keys=True)]
    return words


def command_line(request: Request) -> str:
    """Return that command as text for a shell, with the configuration that it needs."""
    return f"ANSIBLE_CONFIG={shlex.quote(str(content.root() / 'ansible.cfg'))} {shlex.join(command(request))}"


def find_inventory(given: str) -> Path:
    """Return the inventory: the given one, or the only one that can be meant.

    Raises InputError when it does not exist: Ansible would take the path for a host list and succeed on no host.
    """
    if given:
        path = Path(given).expanduser()
        if not path.exists():
            raise InputError(f"{path}: there is no such inventory", "make one: `trackside init HOST…`")
        return path.resolve()
    for path in (Path("inventory/mine"), Path("inventory/local")):
        if path.exists():
            return path.resolve()
    raise InputError(
        "there is no inventory: neither inventory/mine nor inventory/local",
        "name one with -i, make one with `trackside init HOST…`, or try `trackside local up`",
    )
