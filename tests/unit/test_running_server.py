"""Where the commands that ask a server look for it, and how they show text that is not theirs."""

import pytest

from application.settings import ServerSettings
from interfaces.cli.explanation_view import printable
from interfaces.cli.running_server import running_server


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


def test_text_of_prompts_is_never_a_control_code() -> None:
    text = "plain ümläut 汉字 [bold]\n\t\x1b[2J\u202e\ud800"
    assert printable(text) == r"plain ümläut 汉字 [bold]\n\t\x1b[2J\u202e\ud800"
