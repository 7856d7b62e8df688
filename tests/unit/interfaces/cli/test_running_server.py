"""The address of the running server, and the decoding of its answers."""

import json

import pytest

from application.settings import ServerSettings
from interfaces.cli.client.running_server import decoded, running_server


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9000"),
        ("0.0.0.0", "http://127.0.0.1:9000"),
        ("::", "http://[::1]:9000"),
        ("::1", "http://[::1]:9000"),
    ],
)
def test_the_settings_say_where_the_server_is(host: str, url: str) -> None:
    server = running_server(None, None, ServerSettings(host=host, port=9000, api_key="k"))
    assert (server.url, server.api_key) == (url, "k")


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/"])
def test_a_given_address_wins_with_or_without_its_version(url: str) -> None:
    server = running_server(url, "mine", ServerSettings(api_key="k"))
    assert (server.url, server.api_key) == ("http://a:1", "mine")


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 2**64 - 1, 0.5, -1e300])
def test_numbers_of_64_bits_are_read(number: float) -> None:
    assert decoded(json.dumps({"n": number}).encode()) == {"n": number}


@pytest.mark.parametrize("text", [b"1" * 21, b"1e999", b"NaN", b"-Infinity", b"[" * 100_000, b"\xff", b""])
def test_malformed_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decoded(text)
