"""The shared store against servers that do not behave: endless answers, foreign nodes; and against planted names."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from valkey import Valkey

from adapters.resp.shared_store import RespSharedStore
from adapters.zstd.codec import ZstdStateCodec
from application.ports.shared_store import SharedFailure, SharedStoreError
from domain.prefix.fingerprint import NamespaceFilter
from domain.prefix.record import NamespaceInfo
from tests.support.patience import PATIENCE_S
from tests.support.processes.servers.certificates import make_certificates, server_context
from tests.support.processes.servers.redis_server import needs_redis, redis_server
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot

ONE = namespace_of("one")
KEY = b"the key of the fleet, 32 bytes.."

Answers = Callable[[bytes], Iterator[bytes]]
"""Yields the pieces of the answer to a command in upper case, for as long as the client reads."""


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


class HostileServer:
    """A RESP server on loopback that answers as a script says. `received`: all that clients sent."""

    def __init__(self, answers: Answers, context: ssl.SSLContext | None = None) -> None:
        self._answers, self._context, self.received = answers, context, b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self._threads.append(threading.Thread(target=self._serve, args=(sock,), daemon=True))
                self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), sock if self._context is None else self._context.wrap_socket(sock, True) as sock:
            while data := sock.recv(65536):
                self.received += data
                for _ in range(data.count(b"*")):
                    for piece in self._answers(data.upper()):
                        sock.sendall(piece)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def dripping(command: bytes) -> Iterator[bytes]:
    if b"INFO" in command:
        yield bulk(b"redis_mode:standalone\r\n")
        return
    yield b"$1000000\r\n"
    pause = threading.Event()
    while True:
        pause.wait(0.01)
        yield b"x"


def flooding(command: bytes) -> Iterator[bytes]:
    if b"INFO" in command:
        yield bulk(b"redis_mode:standalone\r\n")
        return
    yield b"$100000000000\r\n"
    while True:
        yield bytes(1 << 20)


def listing(command: bytes) -> Iterator[bytes]:
    """A listing that never ends."""
    if b"INFO" in command:
        yield bulk(b"redis_mode:standalone\r\n")
        return
    yield b"*2\r\n" + bulk(b"7") + b"*1000\r\n" + bulk(b"x" * 1000) * 1000


def refusal(call: Callable[[], object]) -> SharedStoreError:
    """The error of a call, which has to end by itself."""
    found: list[SharedStoreError] = []

    def run() -> None:
        try:
            call()
        except SharedStoreError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the call goes on for as long as the server sends"
    return found[0]


@pytest.mark.parametrize("answers", [dripping, flooding])
def test_a_call_ends_however_long_the_server_sends(answers: Answers) -> None:
    with closing(HostileServer(answers)) as server:
        store = RespSharedStore(f"redis://127.0.0.1:{server.port}", ZstdStateCodec(), KEY, call_s=0.5)
        error = refusal(store.ping)
    assert error.failure is SharedFailure.UNREACHABLE
    assert "the answer" in str(error)


def test_a_listing_that_never_ends_is_left() -> None:
    with closing(HostileServer(listing)) as server:
        store = RespSharedStore(f"redis://127.0.0.1:{server.port}", ZstdStateCodec(), KEY)
        error = refusal(store.erase)
    assert error.failure is SharedFailure.UNREACHABLE
    assert "longer than any that was asked for" in str(error)


def node(command: bytes) -> Iterator[bytes]:
    """A node of a cluster, as far as the client asks it."""
    if b"GETRANGE" in command:
        yield bulk(b"")
    elif b"COMMAND" in command:
        yield b"*1\r\n*6\r\n" + bulk(b"getrange") + b":4\r\n*0\r\n:1\r\n:1\r\n:1\r\n"
    else:
        yield b"+OK\r\n"


def cluster_of(host: bytes, port: int) -> Answers:
    """A node that names another one for all slots."""

    def answers(command: bytes) -> Iterator[bytes]:
        if b"SLOTS" in command:
            yield b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n" + bulk(host) + b":%d\r\n" % port
        elif b"INFO" in command:
            yield bulk(b"redis_mode:cluster\r\n")
        else:
            yield b"+OK\r\n"

    return answers


@pytest.mark.parametrize(("name", "is_right"), [("right", True), ("wrong", False)])
def test_the_names_of_a_clusters_certificates_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_right: bool
) -> None:
    made = make_certificates(tmp_path, {"right": "IP:127.0.0.1", "wrong": "DNS:elsewhere.example"})
    monkeypatch.setenv("SSL_CERT_FILE", str(made / "authority.crt"))
    with closing(HostileServer(node, server_context(made, name))) as other:
        answers = cluster_of(b"127.0.0.1", other.port)
        with closing(HostileServer(answers, server_context(made, "right"))) as server:
            store = RespSharedStore(f"rediss://127.0.0.1:{server.port}", ZstdStateCodec(), KEY, "a secret")
            if is_right:
                store.ping()
            else:
                assert refusal(store.ping).failure is SharedFailure.UNREACHABLE
    assert (b"a secret" in other.received) is is_right


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_cluster_gets_the_password_to_no_node_that_is_not_listed(is_listed: bool) -> None:
    with closing(HostileServer(node)) as other, closing(HostileServer(cluster_of(b"127.1", other.port))) as server:
        url, nodes = f"redis://127.0.0.1:{server.port}", ["127.1"] if is_listed else []
        store = RespSharedStore(url, ZstdStateCodec(), KEY, "a secret", nodes=nodes, timeout_s=0.2, call_s=2.0)
        if is_listed:
            store.ping()
        else:
            error = refusal(store.ping)
            assert error.failure is SharedFailure.REFUSED
            assert "it names a node 127.1," in str(error)
            assert "list it in store.shared_nodes" in str(error)
        assert b"a secret" in server.received
        assert (b"a secret" in other.received) is is_listed


@needs_redis
def test_values_of_other_types_are_removed_and_written_anew(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server, Valkey(port=server.port) as raw:
        store = RespSharedStore(server.url, ZstdStateCodec(), KEY)
        block = chain(ONE, 1)[0]
        records = [block, snapshot(block, [1, 2])]
        store.put(ONE, records)
        hints = [hint for hint in store.find(keys_of(records)) if hint is not None]
        names = raw.keys("*")
        for plant in (plant_lists, plant_hashes):
            plant(raw, names)
            assert store.find(keys_of(records)) == [None, None]
            plant(raw, names)
            assert list(store.lengths(ONE.namespace, [block.key.hash])) == [frozenset()]  # type: ignore[union-attr]
            plant(raw, names)
            assert list(store.read(hints).records) == [None, None]
            plant(raw, names)
            assert store.put(ONE, records).num_written == 2
            found = store.read([hint for hint in store.find(keys_of(records)) if hint is not None]).records
            assert all(same(one, record) for one, record in zip(found, records, strict=True))
            assert list(store.lengths(ONE.namespace, [block.key.hash])) == [frozenset({2})]  # type: ignore[union-attr]


def plant_lists(raw: Valkey, names: list[bytes]) -> None:
    raw.delete(*names)
    for name in names:
        raw.lpush(name, "x")


def plant_hashes(raw: Valkey, names: list[bytes]) -> None:
    raw.delete(*names)
    for name in names:
        raw.hset(name, "x", "y")


@needs_redis
def test_planted_names_do_not_hinder_a_removal(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server, Valkey(port=server.port) as raw:
        store = RespSharedStore(server.url, ZstdStateCodec(), KEY)
        nested, numbers = "[" * 4000, '{"model": 1, "fingerprint": [2]}'

        def plant() -> None:
            store.put(ONE, chain(ONE, 2))
            for name in ("", ":", "x", "x:i", "00:i", "00:b:i", "zz:i"):
                raw.set(f"{store.prefix}:{name}", nested if len(name) % 2 else numbers)
            raw.lpush(f"{store.prefix}:11:i", "x")

        plant()
        assert store.erase(NamespaceFilter.of(None, None, "").includes) >= 2
        plant()
        assert store.erase(NamespaceFilter("a model", "a salt").includes) == 0
        assert store.erase(lambda info: isinstance(info, NamespaceInfo) and info.namespace == ONE.namespace) == 2
        plant()
        assert store.erase() >= 2
        assert raw.dbsize() == 0
