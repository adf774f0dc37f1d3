"""Where the Ansible content lies: in the checkout, or in the installed package."""

from __future__ import annotations

import hashlib
from pathlib import Path

# What the image of a prepared node depends on.
NODE_GENERIC = (
    "roles/base_packages",
    "roles/ca_certificates",
    "roles/training_user",
    "roles/python_env",
    "plugins/modules/trackside_build.py",
    "plugins/modules/trackside_env.py",
    "plugins/modules/trackside_packages.py",
    "plugins/modules/trackside_send.py",
    "plugins/filter/trackside_stack.py",
)
NODE_GENERIC_TAGS = "base_packages,ca_certificates,training_user,python_env"


def root() -> Path:
    """Return the folder that holds `ansible.cfg`, `playbooks/`, `roles/`, `plugins/` and `train/`."""
    package = Path(__file__).resolve().parent
    installed = package / "content"
    return installed if installed.is_dir() else package.parent.parent


def playbook(verb: str) -> Path:
    """Return the playbook of a verb."""
    return root() / "playbooks" / f"{verb}.yml"


def prepared_key() -> str:
    """Return the key of the prepared node image: the same content gives the same key."""
    digest = hashlib.sha256()
    for name in NODE_GENERIC:
        path = root() / name
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc")
        for file in files:
            digest.update(str(file.relative_to(root())).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
