"""The text of a configuration file with other values: comments, order and forms stay, and no secret is shown."""

import tomllib
from collections.abc import Sequence
from typing import Any

import pytest

from adapters.config.toml_text import difference, edited, keys_of
from domain.errors import InvalidRequest

TEXT = """# My server
[server]
port = 9000  # the port
api_key = "hunter2"
# api_key = "hunter1"
aliases = [
  "claude-*",  # Claude Code
  "gpt-*=qwen",  # others
]
log_level = "info"   # quiet

[models."org/name"]
salt = "hunter3"
sampling = {temperature = 0.5}  # low

[store]
quota = "16GiB"
"""
OF_MODEL = 'models."org/name"'


@pytest.mark.parametrize(
    ("text", "changes", "lines"),
    [
        (
            TEXT,
            {"server.aliases": ["claude-*", "x=y"], "server.log_level": "debug"},
            [
                "  [server]",
                '-   "gpt-*=qwen",  # others',
                '+   "x=y",',
                '- log_level = "info"   # quiet',
                '+ log_level = "debug"   # quiet',
            ],
        ),
        (TEXT, {"server.log_level": None}, ["  [server]", '- log_level = "info"   # quiet']),
        (TEXT, {"server.image_hosts": ["a.org"]}, ["  [server]", '+ image_hosts = ["a.org"]']),
        (
            TEXT,
            {f"{OF_MODEL}.pin": True, f"{OF_MODEL}.sampling.temperature": 1},
            [
                '  [models."org/name"]',
                "- sampling = {temperature = 0.5}  # low",
                "+ sampling = {temperature = 1}  # low",
                "+ pin = true",
            ],
        ),
        (TEXT, {'models."a.b".sampling.top_k': 4}, ['+ [models."a.b".sampling]', "+ top_k = 4"]),
        (TEXT, {'models."a.b".pin': None}, []),
        (
            'server = {api_key = "hunter2", aliases = ["a"]}\n',
            {"server.aliases": ["b"]},
            ['- server = {api_key = "...", aliases = ["a"]}', '+ server = {api_key = "...", aliases = ["b"]}'],
        ),
        (
            'server.api_key = "hunter2"  # api_key hunter1\nserver.aliases = ["a"]\n',
            {"server.aliases": []},
            ['- server.aliases = ["a"]', "+ server.aliases = []"],
        ),
        ("", {"model.idle_ttl": "30m"}, ["+ [model]", '+ idle_ttl = "30m"']),
        ("[model]", {"model.idle_ttl": "30m"}, ["  [model]", '+ idle_ttl = "30m"']),
    ],
)
def test_single_values_change_and_all_else_stays(text: str, changes: dict[str, Any], lines: list[str]) -> None:
    found = edited(text, changes)
    shown = difference(text, found)
    assert sorted(shown.splitlines()) == sorted(lines)
    assert "hunter" not in shown
    table: Any = tomllib.loads(found)
    for path, value in changes.items():
        assert _value(table, keys_of(path)) == value


def _value(table: Any, keys: Sequence[str]) -> object:
    for key in keys:
        table = table.get(key, {})
    return None if table == {} else table


def test_back_again_is_the_first_text() -> None:
    there = edited(TEXT, {"server.log_level": "debug", f"{OF_MODEL}.sampling.temperature": 0.7})
    assert edited(there, {"server.log_level": "info", f"{OF_MODEL}.sampling.temperature": 0.5}) == TEXT


def test_a_value_where_a_table_belongs_is_not_edited() -> None:
    with pytest.raises(InvalidRequest, match="by hand"):
        edited("models = 1\n", {f"{OF_MODEL}.pin": True})
