"""One run of a playbook as a value, and the command that it stands for."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

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
    Raises it also for YAML that cannot be read, or names a thing twice.
    """
    if given:
        path = Path(given).expanduser()
        if not path.exists():
            raise InputError(f"{path}: there is no such inventory", "make one: `trackside init HOST…`")
    else:
        path = next((path for path in (Path("inventory/mine"), Path("inventory/local")) if path.exists()), Path())
        if not path.name:
            raise InputError(
                "there is no inventory: neither inventory/mine nor inventory/local",
                "name one with -i, make one with `trackside init HOST…`, or try `trackside local up`",
            )
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.suffix in (".yml", ".yaml") and file.is_file():
            _refuse_broken(file)
    return path.resolve()


def _refuse_broken(file: Path) -> None:
    try:
        twice = next(_twice(yaml.compose(file.read_text(encoding="utf-8"))), None)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{file} line {line}: this is not YAML: {error.problem}", "correct it") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    if twice:
        raise InputError(f"{file} line {twice.start_mark.line + 1}: {twice.value} is given twice", "remove one")


def _twice(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Yield the keys that stand a second time in one mapping: the first of the two would be lost in silence."""
    seen = set()
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    for key, _ in pairs:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                yield key
            seen.add(key.value)
    below = node.value if isinstance(node, yaml.SequenceNode) else [value for _, value in pairs]
    for part in below:
        yield from _twice(part)
