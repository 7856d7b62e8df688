"""The settings of KV events: addresses of this machine on networks that are not public, and no salt beside them."""

from typing import Any

import pytest

from adapters.config.loader import load_settings
from application.settings import CacheSettings
from domain.errors import InvalidRequest

HERE = "tcp://127.0.0.1:5557"


@pytest.mark.parametrize("address", [HERE, "tcp://[::1]:1", "tcp://10.0.0.7:65535", "tcp://192.168.1.2:80"])
def test_addresses_on_loopback_and_private_networks_are_taken(address: str) -> None:
    assert CacheSettings(events=address, events_replay=address).events == address


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1:5557", "tcp://127.0.0.1", "tcp://*:5557", "tcp://host:5557", "ipc:///tmp/x", "tcp://127.0.0.1:0"),
        *("tcp://127.0.0.1:65536", "tcp://8.8.8.8:5557", "tcp://[2600::1]:5557", "tcp://127.0.0.1:5557/x"),
    ],
)
@pytest.mark.parametrize("name", ["events", "events_replay"])
def test_others_are_refused_with_the_reason(name: str, address: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"cache\.{name}.*events hold the tokens of prompts"):
        CacheSettings(**{"events": HERE, name: address})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"events_replay": HERE}, "cache.events_replay needs cache.events"),
        ({"events": HERE, "salt": "s"}, "cache.events needs cache.salt to be empty"),
        ({"events_hash": "hex"}, "cache.events_hash must be int or bytes"),
        ({"events_block": 0}, r"cache.events_block must be in 1..4096"),
        ({"events_block": 4097}, r"cache.events_block must be in 1..4096"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        CacheSettings(**values)


def test_they_are_read_from_the_environment() -> None:
    variables = {"CAIRN_CACHE__EVENTS": HERE, "CAIRN_CACHE__EVENTS_BLOCK": "64", "CAIRN_CACHE__EVENTS_TOPIC": "kv@a@b"}
    cache = load_settings(variables).settings.cache
    assert (cache.events, cache.events_block, cache.events_topic, cache.events_hash) == (HERE, 64, "kv@a@b", "int")
