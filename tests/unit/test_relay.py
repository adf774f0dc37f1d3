"""The chain that passes a file on, with real sockets on loopback and a thread for each node."""

import hashlib
import json
import os
import queue
import socket
import threading

import pytest

from trackside_agent import relay

SIZE = 5 * relay.BLOCK + 17


class Node:
    """A node of the chain: `serve` in a thread, its lines through queues."""

    def __init__(self, folder, content, token="t" * 32):
        self.path = folder / "file"
        folder.mkdir(exist_ok=True)
        self.token = token
        self.lines, self.answers = queue.Queue(), queue.Queue()
        self.size, self.sha256 = len(content), hashlib.sha256(content).hexdigest()
        self.thread = threading.Thread(target=relay.serve, args=(iter(self.lines.get, None), self), daemon=True)
        self.thread.start()

    def write(self, text):
        self.answers.put(json.loads(text))

    def flush(self):
        pass

    def begin(self):
        order = {"path": str(self.path), "size": self.size, "sha256": self.sha256}
        self.lines.put(json.dumps({**order, "address": "127.0.0.1", "token": self.token}))
        self.ready = self.answers.get(timeout=10)
        return {**self.ready, "address": "127.0.0.1", "token": self.token}

    def follow(self, successor):
        self.lines.put(json.dumps({"next": successor}))

    def end(self):
        return self.answers.get(timeout=20)


@pytest.fixture
def content():
    return os.urandom(SIZE)


def run_chain(nodes, source, content):
    peers = [node.begin() for node in nodes]
    for node, successor in zip(nodes, [*peers[1:], None], strict=True):
        node.follow(successor)
    relay.send(relay.Incoming(source, SIZE, hashlib.sha256(content).hexdigest(), have=SIZE), peers[0])
    return [node.end() for node in nodes]


def test_a_chain_of_four_brings_the_file_to_all(tmp_path, content):
    source = tmp_path / "source"
    source.write_bytes(content)
    nodes = [Node(tmp_path / str(n), content) for n in range(4)]
    assert run_chain(nodes, source, content) == [{"done": True}] * 4
    assert all(node.path.read_bytes() == content for node in nodes)


def test_what_is_there_is_not_sent_again(tmp_path, content):
    source = tmp_path / "source"
    source.write_bytes(content)
    nodes = [Node(tmp_path / str(n), content) for n in range(3)]
    nodes[0].path.write_bytes(content)
    nodes[1].path.with_name("file.part").write_bytes(content[: 2 * relay.BLOCK])
    assert run_chain(nodes, source, content) == [{"done": True}] * 3
    assert [node.ready["have"] for node in nodes] == [SIZE, 2 * relay.BLOCK, 0]
    assert all(node.path.read_bytes() == content for node in nodes)


def test_wrong_bytes_are_refused_and_forgotten(tmp_path, content):
    source = tmp_path / "source"
    source.write_bytes(content)
    node = Node(tmp_path / "a", content)
    node.path.with_name("file.part").write_bytes(b"x" * 100)
    assert "another sha256" in run_chain([node], source, content)[0]["error"]
    assert list(node.path.parent.iterdir()) == []


def test_a_broken_transfer_keeps_its_bytes_and_says_how_many(tmp_path, content):
    node = Node(tmp_path / "a", content)
    ready = node.begin()
    node.follow(None)
    with socket.create_connection((ready["address"], ready["port"])) as peer:
        peer.sendall(node.token.encode() + content[:1000])
    assert node.end()["error"] == f"the sender stopped after 1000 of {SIZE} bytes"
    assert node.path.with_name("file.part").read_bytes() == content[:1000]


def test_a_stranger_without_the_token_gets_nothing_and_the_listener_closes_after(tmp_path, content):
    source = tmp_path / "source"
    source.write_bytes(content)
    node = Node(tmp_path / "a", content)
    ready = node.begin()
    node.follow(None)
    with socket.create_connection((ready["address"], ready["port"])) as stranger:
        stranger.sendall(b"f" * 32)
        assert stranger.recv(1) == b""
    relay.send(relay.Incoming(source, SIZE, node.sha256, have=SIZE), ready)
    assert node.end() == {"done": True}
    assert node.path.read_bytes() == content
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ready["address"], ready["port"]))


def test_a_head_whose_file_is_not_the_locks_sends_nothing(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(relay.RelayError, match="another sha256"):
        relay.chain(source, "0" * 64, [{"name": "nowhere", "address": "127.0.0.1"}], "agent.py")
