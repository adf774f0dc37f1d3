"""The filter plugin as a module: its file has the name of our package."""

import importlib.util
from pathlib import Path

_path = Path(__file__).parents[2] / "plugins" / "filter" / "trackside.py"
_spec = importlib.util.spec_from_file_location("trackside_filters", _path)
filters = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(filters)
