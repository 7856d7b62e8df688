"""What is told of the prefix cache over HTTP: the header of every answer, explain, warm, stats."""

from collections.abc import Mapping
from typing import Any

import pytest

from adapters.fake.options import HYBRID, UNSUPPORTED, FakeOptions, reply_with
from adapters.memory.block_store import MemoryBlockStore
from application.settings import CacheSettings, ServerSettings
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from domain.scheduling import StepLimits
from interfaces.http.cache_header import CACHE_HEADER
from tests.support.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.gate import Gate
from tests.support.raw_client import RawClient

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EXPLAIN = "/v1/cache/explain"
WARM = "/v1/cache/warm"
ONE_AT_A_TIME = StepLimits(max_batch=1, prefill_budget=256, grid=256)
IMPATIENT = ServerSettings(port=0, keepalive_s=0.05)

TEXT = "".join(f"line {number}\n" for number in range(100))
PROMPT = TEXT[:700]
"""Two full blocks of 256 tokens and 188 more."""
EDITED = PROMPT[:600] + "EDITED" + PROMPT[606:]


class KeptStore(MemoryBlockStore):
    """Outlives the service it is given to, as a folder does."""

    def close(self) -> None:
        self.flush()


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


class TestReasons:
    """One of each that a prompt can have; what cannot be read or restored any more only shows when it is tried."""

    def test_nothing_like_it(self) -> None:
        with fake_service(reuses=True) as service:
            assert explain(service) == golden("never-seen", "Nothing that begins like this prompt is stored.")

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

    def test_more_text(self) -> None:
        with fake_service(reuses=True) as service:
            complete(service, PROMPT[:513])
            sentence = "Nothing that goes on like this prompt after token 513 is stored."
            assert explain(service) == golden("never-seen", sentence, 513, known_tokens=512)

    def test_no_snapshot_for_the_recurrent_layers(self) -> None:
        with fake_service(FakeOptions(layout=HYBRID), reuses=True) as service:
            complete(service, TEXT * 3)
            told = explain(service, TEXT[:600] + "?" * 100)
            assert told == golden(
                "no-snapshot",
                "Blocks are stored up to token 512, but the recurrent layers have no snapshot after token 256 to go on"
                " from.",
                256,
                known_tokens=512,
                divergence={
                    "position": 600,
                    "before": TEXT[588:600],
                    "prompt": "?" * 12,
                    "stored": TEXT[600:612],
                },
            )

    def test_ends_inside_a_block(self) -> None:
        with fake_service(reuses=True) as service:
            complete(service, TEXT[:800])
            sentence = (
                "The prompt ends inside a stored block, and a block is reused whole or not at all; the last one before"
                " ends at token 512."
            )
            assert explain(service) == golden("partial-block", sentence, 512)
            told = explain(service, TEXT[:768])
            assert (told["reason"], told["stopped_at"], told["known_tokens"]) == ("partial-block", 512, 768)

    def test_exact_mode(self) -> None:
        with fake_service(reuses=True, cache_settings=CacheSettings(exact=True)) as service:
            complete(service)
            sentence = "Exact mode resumes only at multiples of the prefill grid; the last usable one is token 512."
            assert explain(service) == golden("off-grid", sentence, 512)

    def test_evicted(self) -> None:
        with fake_service(reuses=True, hot_bytes=20_000) as service:
            complete(service)
            for letter in "abcd":
                complete(service, letter * 700)
            told = explain(service)
            assert told["reason"] == "evicted"
            assert told["sentence"] == (
                f"What follows token {told['known_tokens']} was stored once and has been evicted since."
            )

    def test_another_fingerprint(self) -> None:
        by_model = {"fake-hybrid": FakeOptions(weights=2)}
        with fake_service(reuses=True, by_model=by_model, store=MemoryBlockStore()) as service:
            warm(service)
            note = "stored by fake-attention with another weights"
            assert explain(service, model="fake-hybrid") == golden(
                "other-fingerprint",
                f"The prompt is stored, but not for this model as it runs now: {note}.",
                note=note,
            )

    def test_a_model_whose_cache_cannot_be_captured(self) -> None:
        note = "its cache cannot be captured (FakeOddCache)"
        with fake_service(FakeOptions(layout=UNSUPPORTED), reuses=True) as service:
            complete(service)
            assert explain(service) == golden(
                "unsupported-layout", f"The model is served without reuse: {note}.", note=note
            )

    def test_reuse_is_off(self) -> None:
        with fake_service() as service:
            note = "prefix reuse is off"
            assert explain(service) == golden("disabled", f"Nothing is reused: {note}.", note=note)


class TestExplain:
    def test_computes_nothing_and_loads_the_model(self) -> None:
        gate = Gate("never", 0)
        with fake_service(FakeOptions(hook=gate), reuses=True) as service:
            explain(service)
            assert gate.num_calls("load") == 1
            assert {operation for operation, _ in gate.calls} == {"load"}
            assert explain(service) == explain(service)

    @pytest.mark.parametrize("prompt", [PROMPT, EDITED, PROMPT[:400], TEXT], ids=len)
    @pytest.mark.parametrize("layout", [FakeOptions().layout, HYBRID], ids=["attention", "hybrid"])
    def test_foretells_the_header(self, layout: Any, prompt: str) -> None:
        with fake_service(FakeOptions(layout=layout), reuses=True) as service:
            complete(service)
            told = explain(service, prompt)
            header = complete(service, prompt)
            for field, value in (
                ("reused", told["stopped_at"]),
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
            ({"prompt": None}, 400, "messages"),
            ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, "prompt"),
            ({"prompt": 3}, 400, "prompt"),
            ({"prompt": ""}, 400, "prompt"),
            ({"prompt": "x", "suffix": "y"}, 400, "suffix"),
            ({"prompt": "x", "logprobs": 99}, 400, "logprobs"),
            ({"prompt": [[260]]}, 400, "prompt"),
            ({"prompt": "x", "model": "unheard-of"}, 404, "model"),
            ({"messages": [{"role": "user", "content": 1}]}, 400, "messages[0].content"),
            ({"messages": [], "functions": [{}]}, 400, "functions"),
            ({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0}, 400,
             "max_completion_tokens"),
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
        assert refusing.client.post(EXPLAIN, content=content).status_code == 400

    def test_is_in_the_document(self, refusing: FakeService) -> None:
        document = refusing.client.get("/schema/openapi.json").json()
        body = document["paths"][EXPLAIN]["post"]["requestBody"]["content"]["application/json"]["schema"]
        names = {option["$ref"].rpartition("/")[2] for option in body["oneOf"]}
        assert names == {"ChatCompletionRequest", "CompletionRequest"}
        assert {"PromptExplanation", "PromptWarmed", "CacheStatsBody"} <= set(document["components"]["schemas"])
        answers = document["paths"][CHAT]["post"]["responses"]
        assert CACHE_HEADER in answers["200"]["headers"]


class TestHeader:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_says_what_was_reused(self, path: str, stream: bool) -> None:
        prompt = {"messages": [{"role": "user", "content": "x" * 301}]} if path == CHAT else {"prompt": "x" * 320}
        body = {**prompt, "max_tokens": 2, "stream": stream}
        with fake_service(reuses=True) as service:
            first, second = (service.client.post(path, json=body) for _ in range(2))
            assert first.headers[CACHE_HEADER] == "reused=0; hot=0; store=0; computed=320; reason=never-seen"
            assert second.headers[CACHE_HEADER] == "reused=319; hot=319; store=0; computed=1; reason=last-token"

    @pytest.mark.parametrize("stream", [False, True])
    def test_says_where_the_prompt_left_what_is_known(self, stream: bool) -> None:
        with fake_service(reuses=True) as service:
            complete(service)
            header = complete(service, EDITED, stream=stream)
            assert header == "reused=512; hot=512; store=0; computed=188; reason=never-seen; diverged=600"
            (event,) = [event for event in service.events.of("PrefixMatched") if event.num_hot]
            assert event.diverged_at == 600

    @pytest.mark.parametrize("stream", [False, True])
    def test_has_an_entry_a_choice(self, stream: bool) -> None:
        with fake_service(reuses=True) as service:
            complete(service, "x" * 300)
            prompts = ["x" * 300, "y" * 300]
            entries = complete(service, prompts, n=2, stream=stream).split(", ")
            assert len(entries) == 4
            assert entries[0] == "reused=299; hot=299; store=0; computed=1; reason=last-token"
            if not stream:  # a stream begins when its first choice has something to say
                assert entries[1] == entries[3] == entries[0]
                assert entries[2] == "reused=0; hot=0; store=0; computed=300; reason=never-seen"

    def test_stays_short(self) -> None:
        with fake_service(FakeOptions(reply=reply_with("ok"))) as service:
            entries = complete(service, "x", n=40).split(", ")
            assert len(entries) == 17
            assert entries[-1] == "more=24"

    def test_a_stream_that_waits_too_long_is_pending(self) -> None:
        gate = Gate("decode", 1)
        options = FakeOptions(reply=reply_with("ok"), hook=gate)
        with fake_service(options, settings=IMPATIENT, limits=ONE_AT_A_TIME, reuses=True) as service:
            first = RawClient(service.base_url, COMPLETIONS, {"prompt": "a", "stream": True})
            gate.wait_until_reached()
            second = RawClient(service.base_url, COMPLETIONS, {"prompt": "b", "stream": True})
            assert b"x-cairn-cache: pending\r\n" in second.read_until(b"\r\n\r\n")
            gate.open()
            for client in (first, second):
                client.read_until(b"data: [DONE]")
                client.leave()

    def test_of_several_choices_the_queued_ones_are_pending(self) -> None:
        gate = Gate("decode", 1)
        options = FakeOptions(reply=reply_with("ok"), hook=gate)
        with fake_service(options, settings=IMPATIENT, limits=ONE_AT_A_TIME) as service:
            client = RawClient(service.base_url, COMPLETIONS, {"prompt": ["a", "b"], "stream": True})
            gate.wait_until_reached()
            head = client.read_until(b"\r\n\r\n").decode()
            assert "computed=1; reason=disabled, pending\r\n" in head
            gate.open()
            client.read_until(b"data: [DONE]")
            client.leave()

    def test_a_stream_waits_for_admission_and_then_says_all(self) -> None:
        gate = Gate("decode", 1)
        options = FakeOptions(reply=reply_with("ok"), hook=gate)
        with fake_service(options, limits=ONE_AT_A_TIME, reuses=True) as service:
            first = RawClient(service.base_url, COMPLETIONS, {"prompt": "a" * 300, "stream": True})
            gate.wait_until_reached()
            second = RawClient(service.base_url, COMPLETIONS, {"prompt": "a" * 300, "stream": True})
            service.wait_until(lambda: len(service.hub) == 2, "the second to be queued")
            gate.open()
            assert b"x-cairn-cache: reused=299; " in second.read_until(b"\r\n\r\n")
            for client in (first, second):
                client.read_until(b"data: [DONE]")
                client.leave()

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_fails_before_admission_has_a_status(self, stream: bool) -> None:
        def fail_to_restore(operation: str, _sequence: SequenceId | None, _count: int) -> None:
            if operation == "restore":
                raise ComputeFailed("out of luck")

        with fake_service(FakeOptions(hook=fail_to_restore), reuses=True) as service:
            complete(service)
            response = service.client.post(COMPLETIONS, json={"prompt": PROMPT, "stream": stream})
            assert response.status_code == 500
            assert response.json()["error"]["message"] == "out of luck"
            assert CACHE_HEADER not in response.headers


class TestTenants:
    def test_nobody_sees_what_another_salt_has_stored(self) -> None:
        by_model = {"fake-hybrid": FakeOptions(weights=2)}
        with fake_service(reuses=True, by_model=by_model, store=MemoryBlockStore()) as service:
            secret = PROMPT[:650] + "the password is hunter2" + "." * 27
            warm(service, secret, cache_salt="alice")
            guess = PROMPT[:650] + "the password is ???????" + "." * 27
            told = explain(service, guess, cache_salt="alice")
            assert told["divergence"]["stored"].startswith("hunter2")
            for salt in ({}, {"cache_salt": "bob"}, {"cache_salt": ""}, {"cache_salt": '", "alice'}):
                for prompt in (guess, secret):
                    answer = service.client.post(EXPLAIN, json={"prompt": prompt, **salt})
                    assert answer.json()["prompts"] == [
                        golden("never-seen", "Nothing that begins like this prompt is stored.")
                    ]
                    assert explain(service, prompt, model="fake-hybrid", **salt)["reason"] == "never-seen"
            header = complete(service, secret, cache_salt="bob")
            assert header == "reused=0; hot=0; store=0; computed=700; reason=never-seen"
            assert complete(service, secret, cache_salt="alice").startswith("reused=699; ")

    def test_eviction_is_not_told_to_others(self) -> None:
        with fake_service(reuses=True, hot_bytes=20_000) as service:
            complete(service, cache_salt="alice")
            for letter in "abcd":
                complete(service, letter * 700, cache_salt="alice")
            assert explain(service, cache_salt="alice")["reason"] == "evicted"
            assert explain(service, cache_salt="bob")["reason"] == "never-seen"

    def test_the_server_s_salt_enters_too(self) -> None:
        store = KeptStore()
        for salt in ("first", "second"):
            with fake_service(reuses=True, store=store, cache_settings=CacheSettings(salt=salt)) as service:
                assert explain(service)["reason"] == "never-seen"
                assert warm(service)["computed_tokens"] == 700
        with fake_service(reuses=True, store=store, cache_settings=CacheSettings(salt="first")) as service:
            assert explain(service)["store_tokens"] == 699
            assert explain(service, cache_salt="first")["reason"] == "never-seen"


class TestWarm:
    @pytest.mark.parametrize("layout", [FakeOptions().layout, HYBRID], ids=["attention", "hybrid"])
    def test_survives_a_restart(self, layout: Any) -> None:
        store = KeptStore()
        body = {"messages": [{"role": "user", "content": "x" * 601}]}
        with fake_service(FakeOptions(layout=layout), reuses=True, store=store) as service:
            response = service.client.post(WARM, json={**body, "max_tokens": 77, "n": 2})
            assert response.json() == {
                "object": "cairn.warmed",
                "model": DEFAULT_MODEL,
                "prompts": [{"prompt_tokens": 620, "reused_tokens": 0, "computed_tokens": 620, "stored_tokens": 619}],
            }
            assert len(service.events.of("FirstToken")) == 1
        with fake_service(FakeOptions(layout=layout), reuses=True, store=store) as service:
            header = service.client.post(CHAT, json={**body, "max_tokens": 1}).headers[CACHE_HEADER]
            assert header == "reused=619; hot=0; store=619; computed=1; reason=last-token"

    def test_a_second_time_computes_one_token(self) -> None:
        with fake_service(reuses=True) as service:
            assert warm(service) == {
                "prompt_tokens": 700, "reused_tokens": 0, "computed_tokens": 700, "stored_tokens": None,
            }  # fmt: skip
            assert warm(service)["computed_tokens"] == 1

    def test_refuses_a_model_of_which_nothing_can_be_kept(self) -> None:
        with fake_service(FakeOptions(layout=UNSUPPORTED), reuses=True) as service:
            response = service.client.post(WARM, json={"prompt": "x"})
            assert response.status_code == 400
            assert response.json()["error"]["message"] == (
                "prompts of fake-attention cannot be kept: its cache cannot be captured (FakeOddCache)"
            )

    def test_a_failing_prompt_is_an_error(self) -> None:
        def fail(operation: str, _sequence: SequenceId | None, _count: int) -> None:
            if operation == "prefill":
                raise ComputeFailed("out of luck")

        with fake_service(FakeOptions(hook=fail), reuses=True) as service:
            response = service.client.post(WARM, json={"prompt": PROMPT})
            assert (response.status_code, response.json()["error"]["message"]) == (500, "out of luck")


class TestStats:
    def test_all_three_parts(self) -> None:
        with fake_service(reuses=True, store=MemoryBlockStore(10_000_000)) as service:
            warm(service)
            warm(service, cache_salt="alice")
            stats = service.client.get("/v1/cache/stats").json()
            records = stats["hot"]["blocks"] + stats["hot"]["snapshots"]
            assert stats["object"] == "cairn.cache_stats"
            assert stats["hot"]["budget_bytes"] == 1 << 28
            assert stats["hot"]["blocks"] == 4
            assert stats["hot"]["pinned"] == 0
            assert stats["store"]["quota_bytes"] == 10_000_000
            (model,) = stats["store"]["models"]
            assert (model["model"], model["namespaces"], model["blocks"]) == (DEFAULT_MODEL, 2, 4)
            assert stats["store"]["stored_bytes"] >= model["stored_bytes"] > 0
            assert stats["queue"] == {
                "enqueued": records, "persisted": records, "queued": 0, "queued_bytes": 0, "dropped": {},
            }  # fmt: skip

    def test_without_a_store(self) -> None:
        with fake_service(reuses=True) as service:
            stats = service.client.get("/v1/cache/stats").json()
            assert (stats["store"], stats["queue"]) == (None, None)

    def test_needs_the_key(self) -> None:
        with fake_service(settings=ServerSettings(port=0, api_key="k")) as service:
            for method, path in (("GET", "/v1/cache/stats"), ("POST", EXPLAIN), ("POST", WARM)):
                assert service.client.request(method, path, json={"prompt": "x"}).status_code == 401


@pytest.mark.parametrize(
    ("options", "reuses", "note"),
    [
        (FakeOptions(), True, ""),
        (FakeOptions(), False, "prefix reuse is off"),
        (FakeOptions(layout=UNSUPPORTED), True, "its cache cannot be captured (FakeOddCache)"),
    ],
)
def test_models_say_why_nothing_is_reused(options: FakeOptions, reuses: bool, note: str) -> None:
    with fake_service(options, reuses=reuses) as service:
        complete(service)
        loaded = service.client.get(f"/v1/models/{DEFAULT_MODEL}").json()["cairn"]
        assert (loaded["prefix_reuse"], loaded["prefix_reuse_note"]) == (not note, note)
