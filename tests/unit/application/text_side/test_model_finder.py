"""Models by name: those that clients may name by the settings, the two looks at their files, and loads that failed."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.tokenizer import FakeTokenizers
from adapters.huggingface.model_folder import EMBEDDED_NOTES
from application.live_settings import LiveSettings
from application.ports.model_repository import ModelCheck, ModelPreview
from application.ports.tokenizer import Tokenizer
from application.ports.vision import ImageProcessorLoader
from application.services.text_side.models.load_failures import MAX_REMEMBERED, REMEMBERED_S, LoadFailures
from application.services.text_side.models.model_finder import FoundModel, ModelFinder
from application.settings import ModelSettings, ServerSettings, Settings
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.ids import ModelId
from domain.models.capability import Capability
from domain.models.model_card import LoadOptions, ModelSource
from interfaces.composition.backends import model_repository
from tests.support.patience import PATIENCE_S

NAME = "fake-hybrid"


class Tokenizers(FakeTokenizers):
    """Tells when it was asked. `fails`: then it raises."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.was_asked = Event()
        self._fails = fails

    def load(self, source: ModelSource) -> Tokenizer:
        self.was_asked.set()
        if self._fails:
            raise ModelLoadFailed("no tokenizer")
        return super().load(source)


def found(tokenizers: Tokenizers, check: ModelCheck, images: ImageProcessorLoader | None = None) -> FoundModel:
    async def run() -> FoundModel:
        models, live = FakeModels((NAME,), seeing=[NAME]), LiveSettings(Settings(model=ModelSettings(default=NAME)))
        finder = ModelFinder(models, tokenizers, live, check, FakeClock(), images=images)
        try:
            return await finder.find(ModelId(NAME))
        finally:
            finder.workers.close()

    return asyncio.run(run())


def test_the_tokenizer_is_loaded_while_the_engine_has_not_answered() -> None:
    tokenizers = Tokenizers()

    def answers_late(_source: ModelSource, _options: LoadOptions) -> ModelPreview:
        assert tokenizers.was_asked.wait(PATIENCE_S)
        return ModelPreview(weight_bytes=7)

    assert found(tokenizers, answers_late).weight_bytes == 7


def test_a_model_whose_image_processor_is_broken_serves_text_and_says_why() -> None:
    class Broken:
        def load(self, source: ModelSource) -> None:
            raise ModelLoadFailed("its preprocessor_config.json is broken")

    seen = found(Tokenizers(), lambda _source, _options: ModelPreview(1), Broken())

    assert seen.images is None
    assert Capability.SEE not in seen.source.use.capabilities
    assert seen.source.use.unseen == "its preprocessor_config.json is broken"
    assert seen.source.note.endswith("Its images are not seen: its preprocessor_config.json is broken.")


@pytest.mark.parametrize("tokenizer_fails", [True, False])
def test_what_is_wrong_with_the_files_is_said_first(tokenizer_fails: bool) -> None:
    def refuses(_source: ModelSource, _options: LoadOptions) -> ModelPreview:
        raise ModelLoadFailed("no weights")

    with pytest.raises(ModelLoadFailed, match="no weights"):
        found(Tokenizers(fails=tokenizer_fails), refuses)


def test_a_tokenizer_that_does_not_load_is_reported() -> None:
    with pytest.raises(ModelLoadFailed, match="no tokenizer"):
        found(Tokenizers(fails=True), lambda _source, _options: ModelPreview())


SOURCE = ModelSource(ModelId("m"), "/models/m", created_s=1_700_000_000)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def failures(clock: FakeClock) -> LoadFailures:
    return LoadFailures(clock)


def test_a_failure_is_remembered_for_a_while_and_says_so(failures: LoadFailures, clock: FakeClock) -> None:
    failures.note(SOURCE, "it does not fit")
    clock.advance(12)
    assert failures.recall(SOURCE) == (
        "it does not fit (found 12 s ago; it is tried again 300 s after that, or when its files change)"
    )
    clock.advance(REMEMBERED_S)
    assert failures.recall(SOURCE) is None


@pytest.mark.parametrize("changed", [replace(SOURCE, created_s=1_700_000_001), replace(SOURCE, path="/elsewhere/m")])
def test_changed_files_are_tried(failures: LoadFailures, changed: ModelSource) -> None:
    failures.note(SOURCE, "broken")
    assert failures.recall(changed) is None
    assert failures.recall(SOURCE) is None, "and what was known of the others is forgotten"


def test_a_note_that_was_learnt_meanwhile_leaves_the_files_the_same(failures: LoadFailures) -> None:
    failures.note(replace(SOURCE, note="Its images are not seen: broken."), "broken")
    assert failures.recall(SOURCE) is not None


def test_a_success_is_no_failure_any_more(failures: LoadFailures) -> None:
    failures.note(SOURCE, "broken")
    failures.forget(SOURCE.id)
    assert failures.recall(SOURCE) is None


def test_the_oldest_is_forgotten_first(failures: LoadFailures) -> None:
    sources = [replace(SOURCE, id=ModelId(f"m{number}")) for number in range(MAX_REMEMBERED + 1)]
    for source in sources:
        failures.note(source, "broken")
    assert [failures.recall(source) is None for source in sources[:2]] == [True, False]


_KEY = "secret"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub's cache of two models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("models--org--one", "models--org--two"):
        _model(tmp_path / "hub" / name / "snapshots" / "0")


def _model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    return folder


def _served(server: ServerSettings, model: ModelSettings | None = None) -> set[str]:
    repository = model_repository(Settings(server=server, model=model or ModelSettings()))
    listed = {source.id for source in repository.list()} - set(EMBEDDED_NOTES)
    for id in ("org/one", "org/two"):
        assert (repository.find(ModelId(id)) is not None) == (id in listed)
    return {str(id) for id in listed}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_without_a_key_on_loopback_all_of_the_hubs_cache_is_served(host: str) -> None:
    assert _served(ServerSettings(host=host)) == {"org/one", "org/two"}


@pytest.mark.parametrize("server", [ServerSettings(api_key=_KEY), ServerSettings(host="0.0.0.0", api_key=_KEY)])
def test_elsewhere_clients_name_models_from_a_list(server: ServerSettings) -> None:
    assert _served(server) == set()
    assert _served(server, ModelSettings(default="org/two")) == {"org/two"}
    assert _served(server, ModelSettings(allowed=("org/one",))) == {"org/one"}


def test_the_setting_decides_where_it_is_given() -> None:
    assert _served(ServerSettings(), ModelSettings(hub_cache="off")) == set()
    assert _served(ServerSettings(api_key=_KEY), ModelSettings(hub_cache="on")) == {"org/one", "org/two"}


def test_a_folder_can_be_allowed_under_its_path(tmp_path: Path) -> None:
    folder = str(_model(tmp_path / "own"))
    assert _served(ServerSettings(api_key=_KEY), ModelSettings(allowed=(folder,))) == {folder}
    assert _served(ServerSettings(api_key=_KEY), ModelSettings(draft=folder)) == {folder}
    assert _served(ServerSettings(api_key=_KEY)) == set()


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("model.hub_cache", {"hub_cache": "maybe"}),
        ("model.allowed", {"allowed": ("",)}),
        ("model.parsers", {"parsers": ("hermes",)}),
        ("model.context_length", {"context_length": 1}),
        ("model.context_length", {"context_length": -8}),
        ("model.speculation", {"speculation": "fast"}),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(path: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        replace(ModelSettings(), **values)  # type: ignore[arg-type]
    assert refused.value.param == path
