"""Passes one file from the head along the chain of nodes: every node sends on what it has while it still receives.

The head reaches each node over ssh and speaks with it in JSON lines; the bytes go from node to node over TCP, to a
listener on the fabric's address that takes one connection, which has to bring a token that the head drew for it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

BLOCK = 1 << 20
SILENCE_SECONDS = 60.0  # after which a peer that says nothing is taken for dead
STRANGERS = 8  # connections without the token that a listener bears


class RelayError(Exception):
    """One sentence about what stopped the transfer on this node."""


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()


@dataclass
class Incoming:
    """A file on its way: how much of it lies in `part`, for the threads that pass it on."""

    path: Path
    size: int
    sha256: str
    have: int = 0
    broken: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def part(self) -> Path:
        """Where the bytes lie until they are whole."""
        return self.path.with_name(self.path.name + ".part")

    def look(self) -> None:
        """See how much an earlier transfer has left here."""
        if self.path.exists() and self.path.stat().st_size == self.size and file_digest(self.path) == self.sha256:
            self.have = self.size
        elif self.part.exists() and self.part.stat().st_size <= self.size:
            self.have = self.part.stat().st_size
        else:
            self.part.unlink(missing_ok=True)

    def grow(self, count: int) -> None:
        """Tell the waiting that `count` further bytes lie in `part`."""
        with self.changed:
            self.have += count
            self.changed.notify_all()

    def stop(self) -> None:
        """Tell the waiting that no more will come."""
        with self.changed:
            self.broken = True
            self.changed.notify_all()

    def beyond(self, offset: int) -> int:
        """Wait until there is more than `offset` bytes and return how much there is."""
        with self.changed:
            while self.have <= offset and not self.broken:
                self.changed.wait()
            if self.have <= offset:
                raise RelayError("the transfer to this node broke off")
            return self.have

    def settle(self) -> None:
        """Give the whole file its name; raises RelayError, and forgets the bytes, when they are not the right ones."""
        if not self.part.exists():
            return
        if file_digest(self.part) != self.sha256:
            self.part.unlink()
            raise RelayError(f"{self.path} arrived with another sha256 than it was sent with")
        self.part.replace(self.path)


def receive(incoming: Incoming, listener: socket.socket, token: str) -> None:
    """Take the rest of the file from the one peer that brings the token, and close the listener."""
    with listener, _admit(listener, token) as peer:
        if incoming.have == incoming.size:
            return
        with incoming.part.open("ab") as stream:
            _fill(incoming, peer, stream)


def _fill(incoming: Incoming, peer: socket.socket, stream: IO[bytes]) -> None:
    while incoming.have < incoming.size:
        block = peer.recv(BLOCK)
        if not block:
            raise RelayError(f"the sender stopped after {incoming.have} of {incoming.size} bytes")
        stream.write(block)
        stream.flush()
        incoming.grow(len(block))


def _admit(listener: socket.socket, token: str) -> socket.socket:
    listener.settimeout(SILENCE_SECONDS)
    for _attempt in range(STRANGERS):
        peer, _address = listener.accept()
        peer.settimeout(SILENCE_SECONDS)
        try:
            said = _exactly(peer, len(token))
        except (OSError, RelayError):
            said = b""
        if hmac.compare_digest(said, token.encode()):
            return peer
        peer.close()
    raise RelayError("too many connections without the token")


def _exactly(peer: socket.socket, count: int) -> bytes:
    said = b""
    while len(said) < count:
        block = peer.recv(count - len(said))
        if not block:
            raise RelayError("the connection ended")
        said += block
    return said


def send(incoming: Incoming, successor: dict[str, Any]) -> None:
    """Send the successor what it lacks, as fast as it comes in here.

    `successor` holds its `address`, `port`, `token`, and `have`, the bytes that lie there already.
    """
    offset = int(successor["have"])
    with socket.create_connection((successor["address"], successor["port"]), SILENCE_SECONDS) as peer:
        peer.settimeout(SILENCE_SECONDS)
        peer.sendall(successor["token"].encode())
        if offset == incoming.size:
            return
        incoming.beyond(offset)
        with (incoming.part if incoming.part.exists() else incoming.path).open("rb") as stream:
            stream.seek(offset)
            while offset < incoming.size:
                there = incoming.beyond(offset)
                while offset < there:
                    block = stream.read(min(BLOCK, there - offset))
                    peer.sendall(block)
                    offset += len(block)


def serve(commands: Iterator[str], answers: Any) -> int:
    """Be one node of the chain: read what to take from `commands`, JSON lines, and write what happens to `answers`.

    First line: `path`, `size` (bytes), `sha256`, `address`, `token`; answered by `port` and `have`.
    Second line: `next`, the successor as `send` takes it, or null; answered by `done`, or by `error`.
    """

    def say(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        wanted = json.loads(next(commands))
        incoming = Incoming(Path(wanted["path"]), wanted["size"], wanted["sha256"])
        incoming.path.parent.mkdir(parents=True, exist_ok=True)
        incoming.look()
        listener = socket.create_server((wanted["address"], 0), backlog=1)
        say({"port": listener.getsockname()[1], "have": incoming.have})
        successor = json.loads(next(commands))["next"]
        problems: list[str] = []
        sender = threading.Thread(target=_noting, args=(problems, send, incoming, successor)) if successor else None
        if sender:
            sender.start()
        try:
            receive(incoming, listener, wanted["token"])
            if sender:
                sender.join()
            incoming.settle()
        finally:
            incoming.stop()
    except StopIteration:
        return 1
    except (OSError, RelayError) as error:
        say({"error": _sentence(error)})
        return 1
    say({"done": True})  # what went wrong on the way to the successor is the successor's to say
    return 0


def _noting(problems: list[str], work: Any, *arguments: Any) -> None:
    try:
        work(*arguments)
    except (OSError, RelayError) as error:
        problems.append(_sentence(error))


def _sentence(error: Exception) -> str:
    return "it waited in vain for its peer" if isinstance(error, TimeoutError) else str(error)


class Link:
    """The head's end of the ssh connection to one node of the chain."""

    def __init__(self, node: dict[str, str], agent: str) -> None:
        self.node = node
        command = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", node["name"], "/usr/bin/python3", agent]
        self.process = subprocess.Popen(
            [*command, "relay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def tell(self, document: dict[str, Any]) -> None:
        """Send one line."""
        with suppress(OSError):  # what went wrong stands in the answer, or in ssh's own words
            _open(self.process.stdin).write(json.dumps(document) + "\n")
            _open(self.process.stdin).flush()

    def hear(self) -> dict[str, Any]:
        """Return the node's next answer; raises RelayError with ssh's own words when there is none."""
        line = _open(self.process.stdout).readline()
        if not line:
            self.process.wait()
            words = _open(self.process.stderr).read().strip().splitlines()
            raise RelayError(f"{self.node['name']}: {words[-1] if words else 'ssh ended without a word'}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RelayError(f"{self.node['name']}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the connection, and with it what still waits on the node."""
        _open(self.process.stdin).close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _open(stream: Any) -> Any:
    if stream is None:
        raise RelayError("ssh was started without its pipes")
    return stream


@contextmanager
def _links(nodes: list[dict[str, str]], agent: str) -> Iterator[list[Link]]:
    links = [Link(node, agent) for node in nodes]
    try:
        yield links
    finally:
        for link in links:
            link.close()


def chain(path: Path, sha256: str, nodes: list[dict[str, str]], agent: str) -> dict[str, Any]:
    """Bring the file to `nodes` (`name`, `address`), each from its predecessor, the first from here.

    Those that have most of it already come first: so none has to wait for a predecessor to catch up.
    Returns `{"sent": {node: bytes}, "seconds": S}`. Raises RelayError with a sentence for each node that failed.
    """
    began = time.monotonic()
    if file_digest(path) != sha256:
        raise RelayError(f"{path} on the head has another sha256 than its lock says: remove it there and try again")
    order: dict[str, Any] = {"path": str(path), "size": path.stat().st_size, "sha256": sha256}
    problems: list[str] = []
    with _links(nodes, agent) as links:
        tokens = {link: secrets.token_hex(16) for link in links}
        for link in links:
            link.tell({**order, "address": link.node["address"], "token": tokens[link]})
        ready = {link: link.hear() for link in links}
        row = sorted(links, key=lambda link: -ready[link]["have"])
        peers = [{**ready[link], "address": link.node["address"], "token": tokens[link]} for link in row]
        for link, successor in zip(row, [*peers[1:], None]):
            link.tell({"next": successor})
        here = Incoming(path, order["size"], sha256, have=order["size"])
        _noting(problems, send, here, peers[0])
        problems = [f"{row[0].node['name']}: {words}" for words in problems]
        for link in row:
            try:
                link.hear()
            except RelayError as error:
                problems.append(str(error))
    if problems:
        raise RelayError("; ".join(dict.fromkeys(problems)))
    sent = {link.node["name"]: order["size"] - answer["have"] for link, answer in ready.items()}
    return {"sent": sent, "seconds": round(time.monotonic() - began, 3)}


def main(arguments: list[str]) -> int:
    """Serve as a node of the chain, or, with `lead`, start one as the JSON document on stdin says."""
    if arguments != ["lead"]:
        return serve(sys.stdin, sys.stdout)
    order = json.load(sys.stdin)
    try:
        answer = chain(Path(order["path"]), order["sha256"], order["nodes"], order["agent"])
    except (OSError, RelayError) as error:
        print(json.dumps({"error": _sentence(error)}))
        return 1
    print(json.dumps(answer))
    return 0
