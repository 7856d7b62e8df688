"""Children of a network's modules are found without its own way of asking, and what they compute stays the same."""

from typing import Any

import mlx.core as mx
import mlx.nn

from adapters.mlx.arrays import parameters
from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.child_modules import keep_children_at_hand
from application.services.token_side.model_loads import whole
from domain.ids import ModelId
from tests.support.tiny_models import build, config_of

nn: Any = mlx.nn


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def __call__(self, x: mx.array) -> mx.array:
        found: mx.array = self.linear(x)
        return found


class Network(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = [Layer(), Layer()]
        self.scale = mx.ones(4)
        self.shared = self.layers[0]

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def asked(network: Any, monkeypatch: Any, given: mx.array | None = None) -> list[str]:
    """Names that modules are asked for in their own way during a pass."""
    names: list[str] = []
    own = nn.Module.__getattr__

    def noted(module: Any, name: str) -> Any:
        names.append(name)
        return own(module, name)

    monkeypatch.setattr(nn.Module, "__getattr__", noted)
    network(mx.ones((1, 4)) if given is None else given)
    monkeypatch.undo()
    return names


def test_only_arrays_are_asked_for_in_the_modules_own_way(monkeypatch: Any) -> None:
    network = Network()
    assert {"layers", "linear", "scale"} <= set(asked(network, monkeypatch))
    keep_children_at_hand(network)
    keep_children_at_hand(network)
    assert set(asked(network, monkeypatch)) == {"scale"}


def test_arrays_that_are_replaced_count() -> None:
    network = Network()
    keep_children_at_hand(network)
    untyped: Any = network
    untyped.update({"scale": 2 * mx.ones(4), "layers": [{"linear": {"weight": mx.zeros((4, 4))}}]})
    untyped.layers[0].linear.bias = mx.ones(4)
    untyped.layers[1].linear.weight = mx.zeros((4, 4))
    untyped.layers[1].linear.bias = 3 * mx.ones(4)
    assert network(mx.ones((1, 4))).tolist() == [[6, 6, 6, 6]]


def test_a_networks_parameters_and_children_stay_what_they_were() -> None:
    network = Network()
    untyped: Any = network
    before = [name for name, _ in parameters(network)], dict(untyped.named_modules())
    keep_children_at_hand(network)
    assert ([name for name, _ in parameters(network)], dict(untyped.named_modules())) == before


def test_a_model_that_was_loaded_has_its_children_at_hand(monkeypatch: Any) -> None:
    network = build("qwen3", mx.float32, 0)
    whole(assemble(network, ModelId("m"), ModelFacts(config_of("qwen3"))))
    names = asked(network, monkeypatch, mx.zeros((1, 2), mx.uint32))
    assert not {"model", "layers", "self_attn", "q_proj", "mlp"} & set(names)
