"""The models of the hub that a server would serve, by its settings and by their type."""

from dataclasses import replace

import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings
from domain.ids import ModelId
from interfaces.composition.backends import why_hub_model_is_unserved

ANY = ModelId("org/any")
KEYED = ServerSettings(api_key="secret")


@pytest.mark.parametrize(
    ("server", "model", "model_type", "why"),
    [
        (ServerSettings(), ModelSettings(), "llama", ""),
        (ServerSettings(), ModelSettings(), "", ""),
        (ServerSettings(), ModelSettings(), "nonsense", "no model type 'nonsense'"),
        (ServerSettings(), ModelSettings(download=False), "llama", "model.download = true"),
        (KEYED, ModelSettings(), "llama", "model.allowed"),
        (KEYED, ModelSettings(hub_cache="on"), "llama", ""),
        (KEYED, ModelSettings(allowed=(ANY,)), "llama", ""),
        (KEYED, ModelSettings(default=ANY), "llama", ""),
    ],
)
def test_what_would_not_be_served_is_told_with_the_setting(
    server: ServerSettings, model: ModelSettings, model_type: str, why: str
) -> None:
    settings = Settings(server=server, model=model)
    found = why_hub_model_is_unserved(settings)(ANY, model_type)
    assert why in found
    assert bool(why) is bool(found)
    toy = replace(settings, engine=EngineSettings(backend="fake"))
    assert why_hub_model_is_unserved(toy)(ANY, "nonsense") == ("" if "type" in why else found)
