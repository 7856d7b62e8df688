"""The requirements that llama.cpp's, vLLM's and Ollama's own tests have of a server, where they name no model of
theirs: met, or left out for the reason that docs/conformance.md gives."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.fake.engine import FakeEngine, FakeModels, plan_toy
from adapters.fake.options import VECTOR_SIZE, FakeOptions, reply_with
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.ids import ModelId
from domain.models.capability import Capability, ModelUse
from domain.models.weight_form import WeightForm
from interfaces.composition.backends import Backend
from tests.support.http.peer_checks import PEERS, left_out, problems, requirements
from tests.support.http.servers.live_service import live_service
from tests.support.patience import PATIENCE_S

PAGE = Path(__file__).parents[4] / "docs" / "conformance.md"
CALLER, MUSING, EMBEDDER = map(ModelId, ("caller", "musing", "embedder"))
TEXT = "Hello from the tiny model."


def call_or_text(prompt_ids: Sequence[int]) -> Sequence[int]:
    """Calls the first tool that the prompt shows, unless it has a result already."""
    prompt = FakeTokenizer().decode(prompt_ids)
    shown = re.match(r"<\|start\|>tools\n(.*?)(\n|<\|end\|>)", prompt)
    if shown is None or "<|start|>tool\n" in prompt:
        return TEXT.encode()
    tool = json.loads(shown[1])
    values = {"boolean": True, "string": "Paris"}
    arguments = {name: values[form["type"]] for name, form in tool["parameters"]["properties"].items()}
    return f"<call>{tool['name']} {json.dumps(arguments)}</call>".encode()


class SizedModels(FakeModels):
    """Toys with files and a form of their weights."""

    def __init__(self, names: Iterable[str], uses: Mapping[str, ModelUse]) -> None:
        super().__init__(tuple(names), uses)
        form = WeightForm("toy", "BF16", 16)
        self._sources = {id: replace(one, file_bytes=4_000_000, form=form) for id, one in self._sources.items()}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    options = {
        CALLER: FakeOptions(reply=call_or_text),
        MUSING: FakeOptions(reply=reply_with(f"<think>\nHm.\n</think>\n{TEXT}")),
        EMBEDDER: FakeOptions(context_length=2_048),
    }
    uses = {EMBEDDER: ModelUse(frozenset({Capability.EMBED}), size=VECTOR_SIZE, least=2)}
    backend = Backend(
        lambda: FakeEngine(options),
        SizedModels(options, uses),
        FakeTokenizers(),
        default_grid=256,
        plan=plan_toy,
    )
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=CALLER, download=False),
        engine=EngineSettings(backend="fake"),
        store=StoreSettings(kind="off"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with (
            live_service(settings, backend=backend) as live,
            httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as made,
        ):
            yield made


@pytest.mark.parametrize("peer", PEERS)
def test_each_requirement_is_met_or_left_out_for_a_reason(client: httpx.Client, peer: str) -> None:
    required = requirements(peer)
    missed = {one.test: found for one in required if (found := problems(client, one))}
    unmet = {one.test for one in required if one.unmet}
    assert {test: found for test, found in missed.items() if test not in unmet} == {}
    assert set(missed) == unmet, "met by now"
    assert len(required) - len(unmet) == PEERS[peer]


def test_the_page_says_what_is_left_out_and_why() -> None:
    text = PAGE.read_text()
    assert left_out() in text
    for peer, num_met in PEERS.items():
        assert f"{peer} {num_met} of {len(requirements(peer))}" in text


def test_a_server_that_misses_a_requirement_is_noticed(client: httpx.Client) -> None:
    required: Any = next(one for one in requirements("vLLM") if one.checks and not one.unmet)
    wrong = required._replace(checks=[["eq", "choices.0.finish_reason", "nothing"]], status=[200])
    assert problems(client, wrong)
    assert problems(client, required._replace(status=[418]))
