"""The key file: what it may hold, who may read it, how it changes."""

import os
import threading
from pathlib import Path

import pytest

from adapters.system.key_file import MAX_BYTES, KeyFile, parse_keys, with_key, without_key
from domain.client import Client, Key, key_digest
from domain.errors import InvalidKeys
from domain.priority import Priority

HASH = key_digest(b"secret").hex()
FULL = Client("ci", 'a "salt" \\ \x7f é', True, frozenset({"m", 'odd "name"'}), 60, 4, Priority.BATCH)


def written(path: Path, text: str, mode: int = 0o600) -> KeyFile:
    path.write_text(text)
    path.chmod(mode)
    return KeyFile(str(path))


def test_what_is_written_is_read() -> None:
    keys = [Key(key_digest(b"1"), Client("plain")), Key(key_digest(b"2"), FULL)]
    text = ""
    for key in keys:
        text = with_key(text, key)
    assert list(parse_keys(text)) == keys
    assert b"1" not in {line.encode() for line in text.splitlines()}
    assert parse_keys(without_key(text, "plain")) == (keys[1],)
    assert parse_keys(without_key(without_key(text, "ci"), "plain")) == ()


def test_what_people_wrote_stays() -> None:
    text = f'# ours\n\n[keys.a]  # first\nsha256 = "{HASH}"\n# about b\n[keys.b]\nsha256 = "{"0" * 64}"'
    added = with_key(text, Key(key_digest(b"1"), Client("c")))
    assert added.startswith(text)
    assert without_key(text, "a") == f'# ours\n\n# about b\n[keys.b]\nsha256 = "{"0" * 64}"'
    assert without_key(added, "c") == text + "\n\n"


@pytest.mark.parametrize(
    "text",
    [f'keys = {{a = {{sha256 = "{HASH}"}}}}', f'[keys]\na.sha256 = "{HASH}"', f'["keys".a]\nsha256 = "{HASH}"'],
    ids=["inline", "dotted", "quoted"],
)
def test_what_is_written_otherwise_is_left_alone(text: str) -> None:
    assert len(parse_keys(text)) == 1
    with pytest.raises(InvalidKeys, match="by hand"):
        without_key(text, "a")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[keys.a]\n", "keys.a.sha256 must be 64"),
        ('[keys.a]\nsha256 = "cairn_SECRET"\n', "keys.a.sha256 must be 64"),
        ("[keys.a]\nsha256 = cairn_SECRET\n", "not valid TOML (at line 2"),
        ("cairn_SECRET", "not valid TOML"),
        (f'[keys.a]\nsha256 = "{HASH}"\nrequests_per_minut = 3\n', "unknown field `requests_per_minut`"),
        (
            f'[keys.a]\nsha256 = "{HASH}"\nrequests_per_minute = true\n',
            "Expected `int | null`, got `bool` - at `$.requests_per_minute`",
        ),
        (f'[keys.a]\nsha256 = "{HASH}"\nrequests_per_minute = 0\n', "must be in 1.."),
        (f'[keys.a]\nsha256 = "{HASH}"\npriority = "first"\n', "keys.a: priority must be interactive or batch"),
        (f'[keys.a]\nsha256 = "{HASH}"\nadmin = "false"\n', "Expected `bool`, got `str` - at `$.admin`"),
        (f'[keys.a]\nsha256 = "{HASH}"\nmodels = "m"\n', "Expected `array | null`, got `str` - at `$.models`"),
        (f'[keys.a]\nsha256 = "{HASH}"\nmodels = [1]\n', "Expected `str`, got `int` - at `$.models[0]`"),
        (f'[keys."a b"]\nsha256 = "{HASH}"\n', "letters, digits"),
        (f'[keys.""]\nsha256 = "{HASH}"\n', "the name is taken"),
        (f'[keys.default]\nsha256 = "{HASH}"\n', "taken by server.api_key"),
        (f'[key.a]\nsha256 = "{HASH}"\n', "nothing else"),
        ("keys = 3", "nothing else"),
        ("[keys]\na = 3", "keys.a: Expected `object`, got `int`"),
        (f'[keys.a]\nsha256 = "{HASH}"\n[keys.a]\n', "not valid TOML"),
    ],
    ids=[f"text-{number}" for number in range(18)],
)
def test_what_is_refused_and_repeats_no_value(text: str, told: str) -> None:
    with pytest.raises(InvalidKeys) as refused:
        parse_keys(text)
    assert told in refused.value.message
    assert "SECRET" not in refused.value.message


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o611], ids=oct)
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = written(tmp_path / "keys.toml", f'[keys.a]\nsha256 = "{HASH}"\n', mode)
    with pytest.raises(InvalidKeys, match="chmod 600"):
        file.read()
    with pytest.raises(InvalidKeys, match="chmod 600"):
        file.change(lambda text: text)


def test_what_is_no_file_of_keys(tmp_path: Path) -> None:
    with pytest.raises(InvalidKeys, match="cairn keys add"):
        KeyFile(str(tmp_path / "none.toml")).read()
    (tmp_path / "folder").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    large = written(tmp_path / "large.toml", "#" * (MAX_BYTES + 1))
    odd = tmp_path / "odd.toml"
    odd.write_bytes(b"\xff")
    odd.chmod(0o600)
    for file in (KeyFile(str(tmp_path / "folder")), KeyFile(str(tmp_path / "pipe")), large, KeyFile(str(odd))):
        with pytest.raises(InvalidKeys):
            file.read()


def test_a_change_is_private_whole_and_seen(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.toml"))
    assert file.stamp() is None
    file.change(lambda text: with_key(text, Key(key_digest(b"1"), Client("a"))))
    assert file.path.stat().st_mode & 0o777 == 0o600
    stamp, before = file.stamp(), file.path.read_text()
    with pytest.raises(InvalidKeys, match="has a key named 'a' already"):
        file.change(lambda text: with_key(text, Key(key_digest(b"2"), Client("a"))))
    with pytest.raises(InvalidKeys, match="not valid TOML"):
        file.change(lambda text: text + "[")
    assert (file.stamp(), file.path.read_text()) == (stamp, before)
    file.path.chmod(0o640)
    assert file.stamp() != stamp


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    file = KeyFile(str(tmp_path / "keys.toml"))

    def add(number: int) -> None:
        key = Key(key_digest(bytes([number])), Client(f"k{number}"))
        file.change(lambda text: with_key(text, key))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {key.client.name for key in file.read()} == {f"k{number}" for number in range(8)}
