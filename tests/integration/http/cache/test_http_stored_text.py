"""Who may read what others sent: explanations quote stored prompts by setting, and never those of another salt."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.memory.block_store import MemoryBlockStore
from application.settings import CacheSettings, ServerSettings, Settings
from tests.support.http.clients import EXPLAIN, explain, key_argument, warm
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.processes.cli_process import run_here

SECRET = "The launch code is 0451." + "".join(f" Rule {number}." for number in range(100))
GUESS = SECRET[:19] + "?" * 12

LAN = ServerSettings(host="0.0.0.0", port=0, api_key="k")
KEYED = ServerSettings(port=0, api_key="k")
PRIVATE = ServerSettings(port=0)


@pytest.mark.parametrize(
    ("server", "show_text", "expected"),
    [
        (PRIVATE, "auto", True),
        (ServerSettings(host="localhost"), "auto", True),
        (ServerSettings(host="::1", allowed_hosts=("cairn.lan",)), "auto", True),
        (ServerSettings(cors_origins=("http://localhost:3000",)), "auto", True),
        (KEYED, "auto", False),
        (LAN, "auto", False),
        (ServerSettings(allowed_hosts=("*",)), "auto", False),
        (ServerSettings(cors_origins=("*",)), "auto", False),
        (PRIVATE, "off", False),
        (LAN, "on", True),
    ],
)
def test_auto_is_only_for_a_server_that_only_this_machine_can_ask(
    server: ServerSettings, show_text: str, expected: bool
) -> None:
    assert Settings(server=server, cache=CacheSettings(show_text=show_text)).shows_text is expected


def divergence(service: FakeService) -> dict[str, Any]:
    warm(service, SECRET)
    told: dict[str, Any] = explain(service, GUESS)["divergence"]
    return told


def test_a_keyless_server_on_loopback_quotes_what_is_stored() -> None:
    with fake_service(settings=PRIVATE, reuses=True) as service:
        assert divergence(service)["stored"] == SECRET[19:31]


@pytest.mark.parametrize(
    ("server", "show_text"), [(KEYED, "auto"), (LAN, "auto"), (PRIVATE, "off")], ids=["keyed", "lan", "off"]
)
def test_without_the_setting_positions_are_all_there_is(server: ServerSettings, show_text: str) -> None:
    cache = CacheSettings(show_text=show_text)
    with fake_service(settings=server, cache_settings=cache, reuses=True, store=MemoryBlockStore()) as service:
        service.client.headers["x-api-key"] = "k"
        assert divergence(service) == {
            "position": 19,
            "before": SECRET[7:19],
            "prompt": "?" * 12,
            "stored": None,
        }
        answer = service.client.post(EXPLAIN, json={"prompt": GUESS})
        assert "0451" not in answer.text
        assert answer.json()["prompts"][0]["sentence"] == "From token 19 on the prompt differs from what is stored."


@pytest.mark.parametrize("hot_bytes", [0, 1 << 28], ids=["stored", "hot"])
@pytest.mark.parametrize(
    "salts", [("alice", "bob"), ("alice", None), (None, "bob"), ("", "bob"), ("alice", '", "alice')]
)
def test_no_setting_quotes_across_salts(salts: tuple[str | None, str | None], hot_bytes: int) -> None:
    theirs, mine = ({} if salt is None else {"cache_salt": salt} for salt in salts)
    cache = CacheSettings(show_text="on")
    with fake_service(reuses=True, store=MemoryBlockStore(), hot_bytes=hot_bytes, cache_settings=cache) as service:
        warm(service, SECRET, **theirs)
        assert explain(service, GUESS, **theirs)["divergence"]["stored"] == SECRET[19:31]
        for prompt in (GUESS, SECRET, SECRET[:-1]):
            told = explain(service, prompt, **mine)
            assert (told["divergence"], told["known_tokens"], told["reason"]) == (None, 0, "never-seen")


def test_the_command_says_which_setting_hides_it(tmp_path: Path) -> None:
    with fake_service(settings=KEYED, reuses=True) as service:
        service.client.headers["x-api-key"] = "k"
        warm(service, SECRET)
        file = tmp_path / "request.json"
        file.write_text(json.dumps({"prompt": GUESS}))
        result = run_here(tmp_path, "cache", "explain", str(file), "--url", service.base_url, *key_argument("k"))
        assert result.returncode == 0, result.stderr
        assert "0451" not in result.stdout
        (line,) = [line for line in result.stdout.splitlines() if line.startswith("  stored")]
        assert "cache.show_text" in line
