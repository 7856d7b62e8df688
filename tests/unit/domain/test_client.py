"""Clients: what they may use and have used, their keys by digest, and the tenants behind them."""

from copy import copy
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain import client
from domain.client import OPEN_CLIENT, Client, ClientMeter, KeyRing, key_digest, own_clients
from domain.errors import InvalidKeys, InvalidRequest, LimitReached, NotAllowed, QueueFull
from domain.ids import ModelId, RequestId
from domain.prefix.fingerprint import tenant_salt
from domain.priority import Priority
from domain.request.request import GenerationRequest, TextPrompt

SECOND_NS = 1_000_000_000
START_NS = 77 * SECOND_NS


def meter(per_minute: int | None = None, at_once: int | None = None) -> ClientMeter:
    return ClientMeter(Client("ci", requests_per_minute=per_minute, max_concurrent=at_once))


def left(remaining: int, reset: str) -> dict[str, str]:
    return {"limit": "6", "remaining": str(remaining), "reset": reset}


def test_a_full_bucket_is_a_minute_s_requests_and_one_comes_back_at_a_time() -> None:
    tested = meter(per_minute=6)
    assert tested.allowance(START_NS) == left(6, "0s")
    for _ in range(6):
        tested.charge(1, START_NS)
    assert tested.allowance(START_NS) == left(0, "60s")
    with pytest.raises(LimitReached, match="6 requests a minute") as refused:
        tested.charge(1, START_NS + 3 * SECOND_NS)
    assert refused.value.retry_after_s == 7
    tested.charge(1, START_NS + 10 * SECOND_NS)
    with pytest.raises(LimitReached):
        tested.charge(1, START_NS + 10 * SECOND_NS)
    assert tested.allowance(START_NS + 3600 * SECOND_NS) == left(6, "0s")


@given(
    st.integers(1, 1_000_000),
    st.lists(st.tuples(st.integers(0, 90 * SECOND_NS), st.integers(1, 40), st.integers(0, 1)), max_size=60),
)
def test_the_reported_wait_is_enough_and_no_window_exceeds_the_limit(
    per_minute: int, asked: list[tuple[int, int, int]]
) -> None:
    tested, now_ns, num_granted = meter(per_minute=per_minute), START_NS, 0
    for pause_ns, num, num_paid in asked:
        now_ns += pause_ns
        try:
            tested.charge(num, now_ns, num_paid=num_paid)
            num_granted += max(0, num - num_paid)
        except LimitReached as refused:
            later_ns = now_ns + refused.retry_after_s * SECOND_NS
            again = copy(tested)
            again.charge(num_paid, later_ns)
            again.charge(num, later_ns, num_paid=num_paid)
        except InvalidRequest:
            assert num > per_minute
        elapsed_ns = now_ns - START_NS
        assert num_granted <= per_minute + elapsed_ns // (60 * SECOND_NS // per_minute) + 1
        allowed = tested.allowance(now_ns)
        assert 0 <= int(allowed["remaining"]) <= int(allowed["limit"])


def test_places_are_taken_and_given_back() -> None:
    tested = meter(at_once=3)
    tested.enter(2)
    with pytest.raises(LimitReached, match="2 generations running, of at most 3") as refused:
        tested.enter(2)
    assert refused.value.retry_after_s == 1
    assert isinstance(refused.value, QueueFull)  # dialects answer with Retry-After
    tested.enter(1)
    tested.enter(0)
    tested.leave(2)
    tested.enter(2)


def test_more_than_the_whole_limit_is_an_invalid_request() -> None:
    with pytest.raises(InvalidRequest, match="4 generations a minute"):
        meter(per_minute=4).charge(5, START_NS)
    with pytest.raises(InvalidRequest, match="4 generations at once"):
        meter(at_once=4).enter(5)


def test_without_limits_no_request_is_refused_and_no_header_is_sent() -> None:
    tested = meter()
    tested.charge(10_000_000, START_NS)
    tested.enter(10_000_000)
    assert tested.allowance(START_NS) == {}


def test_a_new_limit_applies_at_once_and_keeps_the_use() -> None:
    tested = meter(per_minute=60)
    tested.charge(60, START_NS)
    tested.client = Client("ci", requests_per_minute=6)
    assert tested.allowance(START_NS) == left(0, "60s")
    with pytest.raises(LimitReached) as refused:
        tested.charge(1, START_NS)
    assert refused.value.retry_after_s == 10


def key(value: bytes, name: str, **fields: object) -> Client:
    return Client(name, key_digest(value), **fields)  # type: ignore[arg-type]


def names(ring: KeyRing, *offered: bytes) -> list[str]:
    return [meter.client.name for meter in ring.find(offered)]


KEYS = [key(b"one", "alice"), key(b"two", "bob"), *own_clients("three")]


def test_a_key_finds_its_client_and_nothing_else_finds_any() -> None:
    ring = KeyRing(KEYS)
    assert names(ring, b"one") == ["alice"]
    assert names(ring, b"junk", b"two", b"two") == ["bob"]
    assert names(ring, b"three") == ["default"]
    assert names(ring, b"one", b"two") == ["alice", "bob"]
    for stranger in (b"", b"on", b"onee", b"ONE", bytes.fromhex(key_digest(b"one")), key_digest(b"one").encode()):
        assert names(ring, stranger) == []
    assert names(ring) == []


@pytest.mark.parametrize(
    "offered",
    [b"one", b"two", b"three", b"junk", b"", b"x" * 30_000],
    ids=["first", "second", "last", "none", "empty", "long"],
)
def test_every_key_is_compared_whichever_it_is(offered: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []
    compare = client.compare_digest

    def recorded(kept: str, sent: str) -> bool:
        compared.append((kept, sent))
        return compare(kept, sent)

    monkeypatch.setattr(client, "compare_digest", recorded)
    KeyRing(KEYS).find([offered])
    assert compared == [(one.sha256, key_digest(offered)) for one in KEYS]


def test_an_open_ring_accepts_every_key_and_an_empty_ring_none() -> None:
    assert [meter.client for meter in KeyRing([], is_open=True).find([b"unused"])] == [OPEN_CLIENT]
    assert KeyRing([]).find([b"", b"unused"]) == []


def test_the_use_is_kept_when_the_keys_are_read_again() -> None:
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
def test_equal_names_or_keys_are_refused_and_change_nothing(twin: Client) -> None:
    ring = KeyRing(KEYS)
    with pytest.raises(InvalidKeys, match=twin.name):
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


def test_a_request_gets_the_name_and_tenant_of_its_client() -> None:
    request = GenerationRequest(RequestId("r"), ModelId("m"), TextPrompt("x"), cache_salt="x")
    client = Client("ci", salt="s", models=frozenset({"m"}))
    owned = client.own(request)
    assert (owned.client, owned.cache_salt) == ("ci", client.tenant("x"))
    with pytest.raises(NotAllowed, match="'ci' may not use the model 'm'"):
        Client("ci", models=frozenset({"M"})).own(request)


def test_a_key_uses_the_tool_servers_that_it_names() -> None:
    user, named = Client("user"), Client("user", mcp=frozenset({"time"}))
    admin, limited = Client("root", admin=True), Client("half", admin=True, mcp=frozenset({"time"}))
    may = [[one.may_use_tools_of(server) for server in ("time", "git")] for one in (user, named, admin, limited)]
    assert may == [[False, False], [True, False], [True, True], [True, False]]
    named.check_tools_of("time")
    with pytest.raises(NotAllowed, match="'user' may not use the tool server 'git'"):
        named.check_tools_of("git")


def test_an_admin_with_some_tool_servers_makes_no_key_that_has_more() -> None:
    Client("root", admin=True).check_whole()
    with pytest.raises(NotAllowed, match="some tool servers"):
        Client("half", admin=True, mcp=frozenset({"time"})).check_whole()


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
def test_bad_names_and_limits_make_no_client(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Client(**fields)  # type: ignore[arg-type]
