"""The shared store on a real redis-server that fails, and against those who write to it without the fleet's key."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from valkey import Valkey

from adapters.resp.shared_store import LABEL_BYTES, PIECE_BYTES, RespSharedStore
from adapters.zstd.codec import ZstdStateCodec
from application.ports.shared_store import SharedFailure, SharedStoreError
from domain.prefix.record import Record
from tests.support.effort import drawn, scaled
from tests.support.processes.servers.certificates import make_certificates
from tests.support.processes.servers.redis_server import RedisServer, free_port, needs_redis, redis_server
from tests.support.stores.store_records import chain, keys_of, namespace_of, same, snapshot

pytestmark = needs_redis

ONE = namespace_of("one")
KEY = b"the key of the fleet, 32 bytes.."
NUM_MUTATED = drawn(8_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def raw(server: RedisServer) -> Iterator[Valkey]:
    """A client without the fleet's key, on an empty server."""
    with Valkey(port=server.port) as client:
        client.flushall()
        yield client


def store_of(port: int, secret: bytes = KEY, scheme: str = "redis", **options: Any) -> RespSharedStore:
    return RespSharedStore(f"{scheme}://127.0.0.1:{port}/0", ZstdStateCodec(), secret, **options)


def read(store: RespSharedStore, records: list[Record]) -> tuple[list[Record | None], int]:
    hints = [hint for hint in store.find(keys_of(records)) if hint is not None]
    answer = store.read(hints)
    return list(answer.records), answer.num_rejected


class TestForgery:
    @pytest.mark.slow
    def test_no_mutated_record_is_ever_returned(self, server: RedisServer, raw: Valkey) -> None:
        """One bit, one byte, a cut, an addition, or a piece of another record; label and body."""
        store, random = store_of(server.port), Random(1)
        one, two = chain(ONE, 2, size_bytes=512)
        store.put(ONE, [one, two])
        names = sorted(name for name in raw.keys("*") if b":b:" in name)
        values = [raw.get(name) for name in names]
        assert all(isinstance(value, bytes) for value in values)
        num_rejected = 0
        for number in range(NUM_MUTATED):
            name, value = names[number % 2], values[number % 2]
            assert isinstance(value, bytes)
            raw.set(name, mutated(value, values[1 - number % 2], random))  # type: ignore[arg-type]
            records, rejected = read(store, [one, two])
            for record in records:
                assert record is None or same(record, one) or same(record, two)
            num_rejected += rejected
            raw.set(name, value)
        # The others did not even look like a label.
        assert num_rejected > NUM_MUTATED // 2

    def test_a_record_under_another_key_is_rejected_and_removed(self, server: RedisServer, raw: Valkey) -> None:
        store = store_of(server.port)
        one, two = chain(ONE, 2)
        store.put(ONE, [one, two])
        first, second = (name for name in sorted(raw.keys("*")) if b":b:" in name)
        raw.copy(first, second, replace=True)
        records, num_rejected = read(store, [one, two])
        assert (num_rejected, records.count(None)) == (1, 1)
        assert [hint is None for hint in store.find(keys_of([one, two]))].count(True) == 1
        assert store.put(ONE, [one, two]).num_written == 1
        assert all(same(found, record) for found, record in zip(read(store, [one, two])[0], [one, two], strict=True))

    def test_a_record_without_one_of_its_pieces_is_a_miss(self, server: RedisServer, raw: Valkey) -> None:
        store = store_of(server.port)
        (large,) = chain(ONE, 1, size_bytes=3 * PIECE_BYTES)
        store.put(ONE, [large])
        pieces = [name for name in raw.keys("*") if b":p:" in name]
        assert len(pieces) > 1
        assert max(raw.strlen(name) for name in raw.keys("*")) <= PIECE_BYTES + LABEL_BYTES
        raw.delete(pieces[0])
        assert read(store, [large]) == ([None], 1)
        assert store.put(ONE, [large]).num_written == 1

    def test_another_key_sees_nothing(self, server: RedisServer, raw: Valkey) -> None:
        ours, theirs = store_of(server.port), store_of(server.port, b"another fleet's key, 32 bytes...")
        records = chain(ONE, 2)
        ours.put(ONE, records)
        assert theirs.find(keys_of(records)) == [None, None]
        assert list(theirs.read([hint for hint in ours.find(keys_of(records)) if hint]).records) == [None, None]
        # Copied to where the other fleet looks, they are not its own.
        for name in raw.keys("*"):
            raw.copy(name, name.replace(fleet_of(ours), fleet_of(theirs)))
        assert read(theirs, records) == ([None, None], 2)

    def test_a_large_value_of_another_writer_is_not_read_whole(self, server: RedisServer, raw: Valkey) -> None:
        store = store_of(server.port)
        block = chain(ONE, 1)[0]
        tail = snapshot(block, [1, 2])
        store.put(ONE, [block, tail])
        for name in raw.keys("*"):
            raw.append(name, b"x" * (PIECE_BYTES + 1000))
        hints = [hint for hint in store.find(keys_of([block])) if hint is not None]
        assert store.read(hints).num_bytes <= PIECE_BYTES
        (lengths,) = store.lengths(ONE.namespace, [tail.parent])
        assert max(lengths) < 1 << 16


def fleet_of(store: RespSharedStore) -> bytes:
    return store.prefix.split(":")[2].encode()


def mutated(value: bytes, other: bytes, random: Random) -> bytes:
    at = random.randrange(len(value))
    kind = random.randrange(6)
    if kind == 0:
        return value[:at] + bytes([value[at] ^ (1 << random.randrange(8))]) + value[at + 1 :]
    if kind == 1:
        return value[:at] + random.randbytes(1) + value[at + 1 :] if random.random() < 0.5 else value[: at or 1]
    if kind == 2:
        return value[:at]
    if kind == 3:
        return value[:at] + random.randbytes(3) + value[at:]
    if kind == 4:
        return value[:LABEL_BYTES] + other[LABEL_BYTES:]
    return other[:at] + value[at:]


def fails(store: RespSharedStore, records: list[Record]) -> SharedFailure:
    with pytest.raises(SharedStoreError) as raised:
        store.put(ONE, records)
    assert len(str(raised.value)) < 1000, "the message quotes what was sent"
    return raised.value.failure


class TestServer:
    def test_full(self, tmp_path: Path) -> None:
        with redis_server(tmp_path, "--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server:
            store = store_of(server.port)
            small = chain(ONE, 1, size_bytes=64)
            store.put(ONE, small)
            assert fails(store, chain(ONE, 4, seed=1, size_bytes=4 << 20)) is SharedFailure.FULL
            assert same(read(store, small)[0][0], small[0])

    def test_evicting(self, tmp_path: Path) -> None:
        with redis_server(tmp_path, "--maxmemory", "12mb", "--maxmemory-policy", "allkeys-lru") as server:
            store = store_of(server.port)
            blocks = chain(ONE, 12, size_bytes=1 << 20)
            for block in blocks:
                store.put(ONE, [block])
            records, num_rejected = read(store, blocks)
            assert 0 < len(records) < len(blocks)
            assert num_rejected == 0

    def test_gone_hanging_and_back(self, tmp_path: Path) -> None:
        with redis_server(tmp_path) as server:
            store = store_of(server.port, timeout_s=1.0)
            blocks = chain(ONE, 1)
            store.put(ONE, blocks)
            server.send(signal.SIGSTOP)
            assert fails(store, blocks) is SharedFailure.UNREACHABLE
            server.send(signal.SIGCONT)
            assert same(read(store, blocks)[0][0], blocks[0])
            server.kill()
            assert fails(store, blocks) is SharedFailure.UNREACHABLE
            server.start()
            assert store.put(ONE, blocks).num_written == 1

    def test_a_restart_between_two_calls_costs_none(self, tmp_path: Path) -> None:
        with redis_server(tmp_path) as server:
            store = store_of(server.port)
            store.ping()
            server.kill()
            server.start()
            store.ping()

    def test_a_password(self, tmp_path: Path) -> None:
        with redis_server(tmp_path, "--requirepass", "secret words") as server:
            store_of(server.port, password="secret words").ping()
            for wrong in ("wrong", None):
                with pytest.raises(SharedStoreError) as raised:
                    store_of(server.port, password=wrong).ping()
                assert "secret" not in str(raised.value)

    def test_a_read_only_replica_refuses(self, tmp_path: Path, server: RedisServer) -> None:
        with redis_server(tmp_path, "--replicaof", "127.0.0.1", str(server.port)) as replica:
            assert fails(store_of(replica.port), chain(ONE, 1, seed=5)) is SharedFailure.REFUSED


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a certificate for 127.0.0.1 and one for another host."""
    names = {"right": "IP:127.0.0.1", "wrong": "DNS:elsewhere.example"}
    return make_certificates(tmp_path_factory.mktemp("tls"), names)


class TestTls:
    @pytest.mark.parametrize(
        ("name", "ca", "is_accepted"),
        [
            ("right", "authority.crt", True),
            ("right", "", False),
            ("wrong", "authority.crt", False),
        ],
    )
    def test_certificates_are_verified(
        self, tmp_path: Path, certificates: Path, name: str, ca: str, is_accepted: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The authority of an own certificate is named as OpenSSL has it, by SSL_CERT_FILE."""
        crt, key, authority = (str(certificates / file) for file in (f"{name}.crt", f"{name}.key", "authority.crt"))
        port = free_port()
        files = ("--tls-cert-file", crt, "--tls-key-file", key, "--tls-ca-cert-file", authority)
        server = RedisServer(tmp_path, "--tls-port", str(port), *files, "--tls-auth-clients", "no", port=0)
        try:
            server.start()
        except AssertionError as error:
            pytest.skip(f"this redis-server has no TLS: {str(error)[-200:]}")
        try:
            if ca:
                monkeypatch.setenv("SSL_CERT_FILE", str(certificates / ca))
            store = store_of(port, scheme="rediss")
            if is_accepted:
                store.ping()
                return
            with pytest.raises(SharedStoreError) as raised:
                store.ping()
            assert raised.value.failure is SharedFailure.UNREACHABLE
            assert "certificate" in str(raised.value).lower()
        finally:
            server.kill()


class TestCluster:
    def test_records_lie_on_two_nodes(self, tmp_path: Path) -> None:
        with ExitStack() as stack:
            buses = {name: free_port() for name in ("a", "b")}
            nodes = [
                stack.enter_context(
                    redis_server(tmp_path / name, "--cluster-enabled", "yes", "--cluster-port", str(bus))
                )
                for name, bus in buses.items()
            ]
            clients = [stack.enter_context(Valkey(port=node.port)) for node in nodes]
            for client, (first, last) in zip(clients, ((0, 8191), (8192, 16383)), strict=True):
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, buses["b"])
            while any(b"cluster_state:ok" not in one.execute_command("CLUSTER", "INFO") for one in clients):
                pass
            store = store_of(nodes[0].port)
            blocks = chain(ONE, scaled(12), size_bytes=256)
            large = chain(ONE, 1, seed=3, size_bytes=2 * PIECE_BYTES)
            tail = snapshot(blocks[-1], [1, 2, 3])
            store.put(ONE, [*blocks, *large, tail])
            records, num_rejected = read(store, [*blocks, *large, tail])
            assert all(same(found, one) for found, one in zip(records, [*blocks, *large, tail], strict=True))
            assert num_rejected == 0
            assert all(client.dbsize() > 0 for client in clients)
            assert store.erase() == len(blocks) + 2
