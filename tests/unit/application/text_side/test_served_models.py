"""Which models clients may name, by the settings: the hub's cache is open to people of this machine only."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS
from application.settings import ModelSettings, ServerSettings, Settings
from domain.errors import InvalidRequest
from domain.ids import ModelId
from interfaces.composition.backends import model_repository

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
    listed = {source.id for source in repository.list()} - set(EMBEDDED_IDS)
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
        ("model.task", {"task": "chat"}),
        ("model.speculation", {"speculation": "fast"}),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(path: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        replace(ModelSettings(), **values)  # type: ignore[arg-type]
    assert refused.value.param == path
