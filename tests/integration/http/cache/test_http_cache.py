"""What is told of the prefix cache over HTTP: the header of every answer, warming, stats, tenants."""

import pytest

from adapters.fake.options import UNSUPPORTED, FakeOptions, reply_with
from adapters.memory.block_store import MemoryBlockStore
from application.settings import CacheSettings, ServerSettings
from domain.ids import SequenceId
from domain.scheduling.step_values import StepLimits
from interfaces.http.answering.documented import CACHE_HEADER
from tests.support.http.clients import (
    CHAT,
    COMPLETIONS,
    EDITED,
    PROMPT,
    WARM,
    RawClient,
    complete,
    explain,
    warm,
)
from tests.support.http.servers.fake_service import DEFAULT_MODEL, fake_service
from tests.support.processes.gate import Gate

ONE_AT_A_TIME = StepLimits(max_batch=1, prefill_budget=256, grid=256)
IMPATIENT = ServerSettings(port=0, keepalive_s=0.05)


class KeptStore(MemoryBlockStore):
    """Outlives the service it is given to, as a folder does."""

    def close(self) -> None:
        self.flush()


class TestHeader:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
    def test_says_what_was_reused(self, path: str, stream: bool) -> None:
        prompt = {"messages": [{"role": "user", "content": "x" * 301}]} if path == CHAT else {"prompt": "x" * 320}
        body = {**prompt, "max_tokens": 2, "stream": stream}
        with fake_service(reuses=True) as service:
            first, second = (service.client.post(path, json=body) for _ in range(2))
            assert first.headers[CACHE_HEADER] == "reused=0; live=0; hot=0; store=0; computed=320; reason=never-seen"
            assert second.headers[CACHE_HEADER] == "reused=319; live=0; hot=319; store=0; computed=1; reason=last-token"

    @pytest.mark.parametrize("stream", [False, True])
    def test_says_where_the_prompt_left_what_is_known(self, stream: bool) -> None:
        with fake_service(reuses=True) as service:
            complete(service)
            header = complete(service, EDITED, stream=stream)
            assert header == "reused=512; live=0; hot=512; store=0; computed=188; reason=never-seen; diverged=600"
            (event,) = [event for event in service.events.of("PrefixMatched") if event.reused.get("hot")]
            assert event.diverged_at == 600

    @pytest.mark.parametrize("stream", [False, True])
    def test_has_an_entry_a_choice(self, stream: bool) -> None:
        with fake_service(reuses=True) as service:
            complete(service, "x" * 300)
            prompts = ["x" * 300, "y" * 300]
            entries = complete(service, prompts, n=2, stream=stream).split(", ")
            assert len(entries) == 4
            assert entries[0] == "reused=299; live=0; hot=299; store=0; computed=1; reason=last-token"
            if not stream:  # a stream begins when its first choice has something to say
                assert entries[1] == entries[3] == entries[0]
                assert entries[2] == "reused=0; live=0; hot=0; store=0; computed=300; reason=never-seen"

    def test_stays_short(self) -> None:
        with fake_service(FakeOptions(reply=reply_with("ok"))) as service:
            entries = complete(service, "x", n=40).split(", ")
            assert len(entries) == 17
            assert entries[-1] == "more=24"

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
            service.wait_until(lambda: service.requests.num_read == 2, "the second to be queued")
            gate.open()
            assert b"x-cairn-cache: reused=299; " in second.read_until(b"\r\n\r\n")
            for client in (first, second):
                client.read_until(b"data: [DONE]")
                client.leave()

    @pytest.mark.parametrize("stream", [False, True])
    def test_what_fails_before_admission_has_a_status(self, stream: bool) -> None:
        def fail_to_restore(operation: str, _sequence: SequenceId | None, _count: int) -> None:
            if operation == "restore":
                raise RuntimeError("out of luck")

        with fake_service(FakeOptions(hook=fail_to_restore), reuses=True) as service:
            complete(service)
            response = service.client.post(COMPLETIONS, json={"prompt": PROMPT, "stream": stream})
            assert response.status_code == 500
            assert response.json()["error"]["message"].endswith("out of luck")
            assert CACHE_HEADER not in response.headers


class TestTenants:
    def test_eviction_is_not_reported_to_others(self) -> None:
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
                "enqueued": records, "persisted": records, "queued": 0, "queued_bytes": 0, "lag_s": 0.0, "dropped": {},
            }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "reuses", "note"),
    [
        (FakeOptions(), True, ""),
        (FakeOptions(), False, "prefix reuse is off"),
        (FakeOptions(layout=UNSUPPORTED), True, "its cache cannot be captured (FakeOddCache)"),
        (FakeOptions(reuse_note="its passes differ"), True, "its passes differ"),
    ],
)
def test_models_say_why_nothing_is_reused(options: FakeOptions, reuses: bool, note: str) -> None:
    with fake_service(options, reuses=reuses) as service:
        complete(service)
        loaded = service.client.get(f"/v1/models/{DEFAULT_MODEL}").json()["cairn"]
        assert (loaded["prefix_reuse"], loaded["prefix_reuse_note"]) == (not note, note)
