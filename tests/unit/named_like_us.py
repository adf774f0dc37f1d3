"""The plugins whose file has a name that a plain import would find elsewhere: our package's, or a module's."""

import importlib.util
from pathlib import Path

PLUGINS = Path(__file__).parents[2] / "plugins"


def _load(kind, name="trackside"):
    spec = importlib.util.spec_from_file_location(f"{name}_{kind}", PLUGINS / kind / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


filters = _load("filter")
callback = _load("callback")


def load_filter(name):
    """Return the filter plugin `name`."""
    return _load("filter", name)
