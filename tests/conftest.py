"""Ansible finds a plugin's shared code as `ansible.module_utils.NAME`; so do the tests."""

import importlib
import sys
from pathlib import Path

for _file in sorted((Path(__file__).parents[1] / "plugins" / "module_utils").glob("*.py")):
    sys.modules[f"ansible.module_utils.{_file.stem}"] = importlib.import_module(_file.stem)
