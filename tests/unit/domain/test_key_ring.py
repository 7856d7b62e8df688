"""Keys by their digests, and the tenants behind them."""

from dataclasses import replace
from itertools import combinations

import pytest

from domain import client
from domain.client import OPEN_CLIENT, Client, Key, KeyRing, key_digest, own_keys
from domain.errors import InvalidKeys, InvalidRequest, NotAllowed
from domain.ids import ModelId, RequestId
from domain.prefix.fingerprint import tenant_salt
from domain.priority import Priority
from domain.request.request import GenerationRequest, TextPrompt


def key(value: bytes, name: str, **fields: object) -> Key:
    return Key(key_digest(value), Client(name, **fields))  # type: ignore[arg-type]


def names(ring: KeyRing, *offered: bytes) -> list[str]:
    return [meter.client.name for meter in ring.find(offered)]


KEYS = [key(b"one", "alice"), key(b"two", "bob"), *own_keys("three")]


def test_a_key_finds_its_client_and_nothing_else_finds_any() -> None:
    ring = KeyRing(KEYS)
    assert names(ring, b"one") == ["alice"]
    assert names(ring, b"junk", b"two", b"two") == ["bob"]
    assert names(ring, b"three") == ["default"]
    assert names(ring, b"one", b"two") == ["alice", "bob"]
    for stranger in (b"", b"on", b"onee", b"ONE", key_digest(b"one"), key_digest(b"one").hex().encode()):
        assert names(ring, stranger) == []
    assert names(ring) == []


@pytest.mark.parametrize(
    "offered",
    [b"one", b"two", b"three", b"junk", b"", b"x" * 30_000],
    ids=["first", "second", "last", "none", "empty", "long"],
)
def test_every_key_is_compared_whichever_it_is(offered: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = client.compare_digest

    def recorded(kept: bytes, sent: bytes) -> bool:
        compared.append((kept, sent))
        return compare(kept, sent)

    monkeypatch.setattr(client, "compare_digest", recorded)
    KeyRing(KEYS).find([offered])
    assert compared == [(one.digest, key_digest(offered)) for one in KEYS]


def test_an_open_ring_is_open_to_anybody_and_an_empty_one_to_nobody() -> None:
    assert [meter.client for meter in KeyRing([], is_open=True).find([b"unused"])] == [OPEN_CLIENT]
    assert KeyRing([]).find([b"", b"unused"]) == []


def test_what_was_used_outlives_reading_the_keys_again() -> None:
    ring = KeyRing([key(b"one", "alice", max_concurrent=2)])
    (meter,) = ring.find([b"one"])
    meter.enter(1)
    ring.replace([key(b"other", "alice", max_concurrent=1), key(b"two", "bob")])
    assert names(ring, b"one") == []
    (again,) = ring.find([b"other"])
    assert again is meter
    assert again.client.max_concurrent == 1


@pytest.mark.parametrize(
    "twin",
    [key(b"one", "carol"), key(b"four", "alice"), key(b"four", "default")],
    ids=["value", "name", "settings"],
)
def test_twins_are_refused_and_change_nothing(twin: Key) -> None:
    ring = KeyRing(KEYS)
    with pytest.raises(InvalidKeys, match=twin.client.name):
        ring.replace([*KEYS, twin])
    assert names(ring, b"one") == ["alice"]
    assert names(ring, b"four") == []


def test_no_cache_salt_reaches_another_tenant() -> None:
    """Not even one that is what another tenant's salt becomes, on its way or at its end."""
    tenants = [Client("a"), Client("b", salt="team"), Client("c", salt="other")]
    sent = ["", "team", "x"]
    for _ in range(2):
        sent += [tenant.tenant(salt) for tenant in tenants for salt in sent]
        sent += [tenant_salt("", salt) for salt in sent]
    sent = list(dict.fromkeys(sent))
    assert len(sent) > 20
    reached = [{tenant.tenant(salt) for salt in sent} for tenant in tenants]
    assert all(len(salts) == len(sent) for salts in reached)
    assert all(not one & other for one, other in combinations(reached, 2))


def test_equal_salts_share_by_wish_and_none_is_as_without_keys() -> None:
    assert Client("a", salt="team").tenant("x") == Client("b", salt="team").tenant("x")
    assert Client("a").tenant("x") == "x"
    assert OPEN_CLIENT.tenant("") == ""


def test_a_request_becomes_its_client_s() -> None:
    request = GenerationRequest(RequestId("r"), ModelId("m"), TextPrompt("x"), cache_salt="x")
    client = Client("ci", salt="s", models=frozenset({"m"}))
    owned = client.own(request)
    assert (owned.client, owned.cache_salt) == ("ci", client.tenant("x"))
    with pytest.raises(NotAllowed, match="'ci' may not use the model 'm'"):
        Client("ci", models=frozenset({"M"})).own(request)


def test_a_client_of_low_priority_cannot_ask_for_a_higher_one() -> None:
    request = GenerationRequest(RequestId("r"), ModelId("m"), TextPrompt("x"))
    waits = replace(request, priority=Priority.BATCH)
    assert Client("a").own(request).priority is Priority.INTERACTIVE
    assert Client("a").own(waits).priority is Priority.BATCH
    assert Client("a", priority=Priority.BATCH).own(request).priority is Priority.BATCH


@pytest.mark.parametrize(
    "fields",
    [{"name": "a b"}, {"name": "x" * 65}, {"requests_per_minute": 0}, {"max_concurrent": 0}, {"name": "a\n"}],
    ids=str,
)
def test_what_makes_no_client(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Client(**fields)  # type: ignore[arg-type]
