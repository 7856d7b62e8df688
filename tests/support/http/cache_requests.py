"""Requests about one prompt, to a server on the toy engine, and what is told of them."""

from typing import Any

from interfaces.http.answering.documented import CACHE_HEADER
from tests.support.http.servers.fake_service import FakeService

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EXPLAIN = "/v1/cache/explain"
WARM = "/v1/cache/warm"

TEXT = "".join(f"line {number}\n" for number in range(100))
PROMPT = TEXT[:700]
"""Two full blocks of 256 tokens and 188 more."""
EDITED = PROMPT[:600] + "EDITED" + PROMPT[606:]


def complete(service: FakeService, prompt: Any = PROMPT, **fields: Any) -> str:
    """Returns the header."""
    response = service.client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 1, **fields})
    assert response.status_code == 200, response.text
    return response.headers[CACHE_HEADER]


def explain(service: FakeService, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    """The explanation of one prompt."""
    response = service.client.post(EXPLAIN, json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    (told,) = response.json()["prompts"]
    return told


def warm(service: FakeService, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    response = service.client.post(WARM, json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    (told,) = response.json()["prompts"]
    return told


def golden(reason: str, sentence: str, stopped_at: int = 0, **others: Any) -> dict[str, Any]:
    """An explanation of a prompt of 700 tokens of which the hot tier has `stopped_at`."""
    return {
        "prompt_tokens": 700,
        "live_tokens": 0,
        "shared_tokens": 0,
        "hot_tokens": stopped_at,
        "store_tokens": 0,
        "computed_tokens": 700 - stopped_at,
        "stopped_at": stopped_at,
        "reason": reason,
        "sentence": sentence,
        "known_tokens": stopped_at,
        "divergence": None,
        "nearest_fork": None,
        "note": "",
    } | others
