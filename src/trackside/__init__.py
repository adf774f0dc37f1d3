"""Trackside: N bare SSH hosts and one inventory become one DeepSpeed training cluster."""

__version__ = "0.1.0"
