"""The local cluster: containers on this machine that behave like nodes."""

from trackside.local.cluster import Cluster, NodeStatus, down, prepare, status, up
from trackside.local.inventory import Node

__all__ = ["Cluster", "Node", "NodeStatus", "down", "prepare", "status", "up"]
