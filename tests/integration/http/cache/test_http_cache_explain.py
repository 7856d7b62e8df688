"""POST /v1/cache/explain: golden answers, and that it refuses, foretells and computes as it should."""

from collections.abc import Mapping
from typing import Any

import pytest

from adapters.fake.options import HYBRID, FakeOptions
from tests.support.http.clients import (
    CHAT,
    EDITED,
    EXPLAIN,
    PROMPT,
    WARM,
    complete,
    explain,
    golden,
)
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.gate import Gate


class TestReasons:
    """In the words of the API; every reason and its sentence: test_prefix_cache, test_explanation."""

    def test_all_of_it(self) -> None:
        with fake_service(reuses=True) as service:
            complete(service)
            assert explain(service) == golden(
                "last-token",
                "Everything is reused but the last token, which is always computed.",
                699,
                known_tokens=512,
            )

    def test_another_text(self) -> None:
        with fake_service(reuses=True) as service:
            complete(service)
            assert explain(service, EDITED) == golden(
                "never-seen",
                "From token 600 on the prompt differs from what is stored.",
                512,
                divergence={
                    "position": 600,
                    "before": PROMPT[588:600],
                    "prompt": "EDITED" + PROMPT[606:612],
                    "stored": PROMPT[600:612],
                },
            )


class TestExplain:
    def test_computes_nothing_and_loads_the_model(self) -> None:
        gate = Gate("never", 0)
        with fake_service(FakeOptions(hook=gate), reuses=True) as service:
            explain(service)
            assert gate.num_calls("load") == 1
            assert {operation for operation, _ in gate.calls} == {"load", "measure"}
            assert explain(service) == explain(service)

    @pytest.mark.parametrize("layout", [FakeOptions().layout, HYBRID], ids=["attention", "hybrid"])
    @pytest.mark.parametrize("live_bytes", [0, 1 << 28], ids=["records", "live"])
    def test_foretells_the_header(self, live_bytes: int, layout: Any) -> None:
        with fake_service(FakeOptions(layout=layout), reuses=True, live_bytes=live_bytes) as service:
            complete(service)
            told = explain(service, EDITED)
            header = complete(service, EDITED)
            for field, value in (
                ("reused", told["stopped_at"]),
                ("live", told["live_tokens"]),
                ("hot", told["hot_tokens"]),
                ("computed", told["computed_tokens"]),
                ("reason", told["reason"]),
            ):
                assert f"{field}={value}" in header.split("; ")

    def test_a_chat_shows_the_fork_it_left(self) -> None:
        with fake_service(reuses=True) as service:
            system = {"role": "system", "content": "You help. " * 40}
            chat = {"messages": [system, {"role": "user", "content": "Is it Monday?"}], "max_completion_tokens": 1}
            service.client.post(CHAT, json=chat)
            chat["messages"][1] = {"role": "user", "content": "Is it Sunday?"}
            response = service.client.post(EXPLAIN, json={**chat, "stream": True, "n": 3})
            assert response.json()["model"] == DEFAULT_MODEL
            (told,) = response.json()["prompts"]
            assert told["divergence"] == {
                "position": told["nearest_fork"]["position"] + len("\x00user\nIs it "),
                "before": "<|start|>user\nIs it ",
                "prompt": "Sunday?<|end|>\n<|start|>as",
                "stored": "Monday?<|end|>\n<|start|>as",
            }
            assert told["nearest_fork"]["kind"] == "system_end"

    def test_several_prompts_one_entry_each(self) -> None:
        with fake_service(reuses=True) as service:
            complete(service)
            body = {"prompt": [PROMPT, list(range(97, 107))], "n": 2}
            prompts = service.client.post(EXPLAIN, json=body).json()["prompts"]
            assert [(told["prompt_tokens"], told["stopped_at"]) for told in prompts] == [(700, 699), (10, 0)]

    @pytest.mark.parametrize("path", [EXPLAIN, WARM])
    @pytest.mark.parametrize(
        ("body", "status", "param"),
        [
            ({}, 400, "messages"),
            ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, "prompt"),
            ({"prompt": "x", "suffix": "y"}, 400, "suffix"),
            ({"prompt": [[260]]}, 400, "prompt"),
            ({"prompt": "x", "model": "unheard-of"}, 404, "model"),
            ({"messages": [{"role": "user", "content": 1}]}, 400, "messages[0].content"),
        ],
    )  # fmt: skip
    def test_refuses_what_the_request_would_be_refused_for(
        self, refusing: FakeService, path: str, body: Mapping[str, Any], status: int, param: str
    ) -> None:
        response = refusing.client.post(path, json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)

    @pytest.fixture(scope="class")
    def refusing(self) -> Any:
        with fake_service(reuses=True) as service:
            yield service

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"'])
    def test_refuses_what_is_no_request(self, refusing: FakeService, content: bytes) -> None:
        headers = {"content-type": "application/json"}
        assert refusing.client.post(EXPLAIN, content=content, headers=headers).status_code == 400
