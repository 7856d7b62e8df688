"""Tiny models that see, served as they ship: images over a socket, reused over turns, users and a restart."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from tests.support.http.images import openai_part
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.mlx.tiny_seers import picture, write_seeing_folder
from tests.support.patience import PATIENCE_S

pytest.importorskip("mlx_vlm")

LONG = "Here is what I was told about the picture before you came. " * 12


@contextmanager
def served(folder: Path, store: Path) -> Iterator[LiveService]:
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=str(folder), download=False),
        engine=EngineSettings(backend="mlx"),
        store=StoreSettings(kind="lmdb", dir=str(store), quota=ByteSize.parse("64MiB")),
    )
    with live_service(settings) as running:
        yield running


def ask(live: LiveService, messages: Sequence[dict[str, Any]]) -> tuple[str, int, int]:
    """The answer, the tokens of the prompt, and how many of them were reused."""
    body = {"messages": messages, "max_tokens": 6, "temperature": 0}
    response = httpx.post(f"{live.base_url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    answer = response.json()
    usage = answer["usage"]
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], reused


def user(*content: Any) -> dict[str, Any]:
    parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
    return {"role": "user", "content": parts}


@pytest.mark.parametrize("name", ["idefics3", "qwen3_vl"])
def test_images_are_computed_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, store = write_seeing_folder(name, tmp_path / "model"), tmp_path / "store"
    first, second = openai_part(picture(1)), openai_part(picture(2, 40, 70))
    system = {"role": "system", "content": LONG}
    begun = [system, user(first, "and", second, "what are they?")]

    with served(folder, store) as live:
        answer, num_tokens, reused = ask(live, begun)
        assert reused == 0
        other = ask(live, [system, user(second, "and", first, "what are they?")])
        assert other[0] != answer  # the same pixels in another order are another prompt
        again = ask(live, begun)
        assert again[:2] == (answer, num_tokens)
        assert again[2] >= num_tokens - 16
        turn = [*begun, {"role": "assistant", "content": answer}, user("why?")]
        later = ask(live, turn)
        assert later[2] >= num_tokens - 16
        only = ask(live, [system, user(first, "and", "what is it?")])
        assert only[2] > 256  # the common beginning, to the middle of the prompt

    with served(folder, store) as live:
        restarted = ask(live, turn)
        assert restarted[:2] == later[:2]
        assert restarted[2] >= num_tokens - 16
