"""Variants computed beside a network are those of the changed network, and losses follow from them."""

from math import inf
from pathlib import Path

import mlx.core as mx
import pytest

from adapters.mlx.loading.network import open_network
from adapters.mlx.quantising import sensitivity
from adapters.mlx.quantising.layerwise import Layerwise, Unmeasurable, Variant, qualities
from adapters.mlx.quantising.rounding import dequantised, expanded, fitted, quantised
from adapters.mlx.quantising.sensitivity import FORMS, Matrix, Sensitivities, measure, parts_of
from application.ports.quantiser import QuantOrder, QuantPhase, QuantProgress
from domain.models.capability import PLAIN_USE
from domain.models.quantisation import MEASURED, Quantisation
from tests.support.mlx.quantised_copies import copied, quantiser
from tests.support.mlx.tiny_models import build, write_folder

TOKENS = mx.array([[5, 9, 2, 7, 11, 3, 8, 1], [4, 4, 6, 1, 2, 9, 30, 12]], dtype=mx.uint32)
FOUR = Quantisation("affine", 4, 32)
LAYERED = ("llama", "qwen3_moe", "qwen3_5", "gemma3_text", "falcon_h1", "mamba2", "phi3")


def matrices(network: object) -> list[Matrix]:
    found = network.named_modules()  # type: ignore[attr-defined]
    return [Matrix(path, tuple(module.weight.shape)) for path, module in found if hasattr(module, "to_quantized")]


def fewer(_path: str, weight: mx.array) -> mx.array:
    return dequantised(weight, FOUR)


@pytest.mark.parametrize("name", LAYERED)
def test_a_variant_is_the_network_with_those_matrices(name: str) -> None:
    network, changed = build(name), build(name)
    paths = tuple(matrix.path for matrix in matrices(network) if matrix.shape[-1] % 32 == 0)
    some = (paths[:3], paths[-2:], paths, ("nothing",)[:0])
    layers = Layerwise(network, [Variant(tuple(one), fewer) for one in some])
    plain = network(TOKENS).astype(mx.float32)
    wanted = []
    modules = dict(changed.named_modules())
    for one in some:
        kept = {path: modules[path].weight for path in one}
        for path, weight in kept.items():
            modules[path].weight = fewer(path, weight)
        wanted.append(changed(TOKENS).astype(mx.float32))
        mx.eval(wanted[-1])
        for path, weight in kept.items():
            modules[path].weight = weight
    mx.eval(plain)
    layers.run(TOKENS, lambda _: None)
    for row in range(2):
        assert bool(mx.allclose(layers.logits(TOKENS, None, row), plain[row], atol=2e-5))
        for variant, logits in zip(layers.variants, wanted, strict=True):
            assert bool(mx.allclose(layers.logits(TOKENS, variant, row), logits[row], atol=2e-5))


def test_the_weights_of_a_layer_are_freed_behind_it() -> None:
    network = build("llama")
    held: list[int] = []
    layers = Layerwise(network, ())
    layers.run(TOKENS, lambda done: held.append(sum(layer.self_attn.q_proj.weight.size for layer in network.layers)))
    assert held == sorted(held, reverse=True)
    assert held[-1] == 0


def test_a_family_whose_layers_give_more_is_refused() -> None:
    class Double(type(build("llama").layers[0])):  # type: ignore[misc]
        def __call__(self, *args: object, **kwargs: object) -> object:
            return super().__call__(*args, **kwargs), None

    network = build("llama")
    network.layers[0].__class__ = Double
    with pytest.raises(Unmeasurable):
        Layerwise(network, ()).run(TOKENS, lambda _: None)


def test_an_equal_variant_has_no_loss_and_a_coarser_one_more() -> None:
    network = build("llama")
    paths = tuple(matrix.path for matrix in matrices(network) if matrix.shape[-1] % 32 == 0)
    forms = [Quantisation("affine", bits, 32) for bits in (8, 4, 2)]
    variants = [Variant(paths, lambda _, weight, form=form: dequantised(weight, form)) for form in forms]  # type: ignore[misc]
    layers = Layerwise(network, [Variant(paths, lambda _, weight: weight), *variants])
    layers.run(TOKENS, lambda _: None)
    same, *others = qualities(layers, TOKENS)
    assert same.kl == pytest.approx(0, abs=1e-6)
    assert same.agreement == 1
    assert same.perplexity == pytest.approx(same.source_perplexity)
    assert 0 < others[0].kl < others[1].kl < others[2].kl
    assert same.num_tokens == 16


# ---- fitted ranges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_fitted_ranges_lose_less_in_every_group_and_in_the_same_form(bits: int) -> None:
    mx.random.seed(2)
    weight, form = mx.random.normal((16, 128)), Quantisation("affine", bits, 32)
    moments = mx.exp(mx.random.normal((128,)))
    plain, better = (quantised(weight, form, one) for one in (None, moments))
    assert [(part.shape, part.dtype) for part in plain] == [(part.shape, part.dtype) for part in better]
    errors = [
        mx.sum((mx.square(expanded(parts, form) - weight) * moments).reshape(-1, 32), axis=1)
        for parts in (plain, better)
    ]
    assert bool(mx.all(errors[1] <= errors[0] + 1e-5))
    assert float(mx.sum(errors[1])) < float(mx.sum(errors[0]))
    assert bool(mx.array_equal(fitted(mx.zeros((2, 128)), form, moments), mx.zeros((2, 128))))


def test_moments_are_the_mean_squares_of_what_a_layer_gets() -> None:
    network = build("llama")
    seen: list[mx.array] = []
    kind = type(network.layers[1].mlp.down_proj)

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __call__(self, x: mx.array) -> mx.array:
            seen.append(x)
            return super().__call__(x)  # type: ignore[no-any-return]

    network.layers[1].mlp.down_proj.__class__ = Watched
    layers = Layerwise(network, ())
    layers.run(TOKENS, lambda _: None)
    found = layers.moments("model.layers.1.mlp.down_proj")
    assert found is not None
    assert bool(mx.allclose(found, mx.mean(mx.square(seen[0].reshape(-1, 96)), axis=0), rtol=1e-4))
    assert layers.moments("model.embed_tokens") is None
    assert layers.moments("lm_head") is None
    layers.logits(TOKENS, None, 0)
    assert layers.moments("lm_head") is not None


# ---- sensitivities ---------------------------------------------------------------------------------------------------


def test_parts_and_their_bytes_are_those_that_are_written(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    network, _ = open_network(folder)
    found = matrices(network)
    together = {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"}
    assert together in [set(paths) for paths in parts_of(found)]
    assert sorted(path for paths in parts_of(found) for path in paths) == sorted(matrix.path for matrix in found)
    measured = measure(folder, PLAIN_USE, found, [[1, 2, 3, 4], [4, 5, 6, 7]], lambda done, total: None)
    assert len(measured.moments) == len(found) - 1  # all but the embedding
    for part in measured.parts(found):
        assert len(part.choices) < len(FORMS)  # rows of 64 and 96 values
        ordered = [loss for form, (_, loss) in part.choices.items() if form.group == 32]
        assert ordered == sorted(ordered, reverse=True)
    written = {matrix.path: matrix for matrix in copied(folder, tmp_path / "copy", FOUR).plan.matrices}
    assert all(written[matrix.path].num_bytes == matrix.bytes_in(FOUR) for matrix in found)


def test_a_source_is_measured_once_for_all_sizes(tmp_path: Path) -> None:
    folder, phases = write_folder("llama", tmp_path / "source", mx.bfloat16), list[QuantPhase]()

    def report(now: QuantProgress) -> None:
        phases.append(now.phase)

    sizes: list[int] = []
    for most_bytes in (None, 70_000, 60_000):
        order = QuantOrder(str(folder), str(tmp_path / "copy"), PLAIN_USE, FOUR, MEASURED, most_bytes=most_bytes)
        plan = quantiser(tmp_path / "memory").plan(order, report)
        sizes.append(plan.num_bytes)
        assert most_bytes is None or plan.num_bytes <= most_bytes
        measured, phases = phases, []
        assert (QuantPhase.MEASURING in measured) is (most_bytes is None)
    assert sizes[1] > sizes[2]
    for file in (tmp_path / "memory" / "sensitivities").iterdir():
        file.write_bytes(b"torn")
    quantiser(tmp_path / "memory").plan(order, report)
    assert QuantPhase.MEASURING in phases


def test_what_is_remembered_is_read_again_and_bounded(tmp_path: Path) -> None:
    losses = {"a": [float(number) for number in range(len(FORMS) - 1)] + [inf]}
    for number in range(40):
        sensitivity.remember(tmp_path, f"key{number}", Sensitivities(losses, {"a": mx.ones((4,))}))
    found = sensitivity.recall(tmp_path, "key39")
    assert found is not None
    assert found.losses == losses
    assert found.moments["a"].tolist() == [1, 1, 1, 1]
    assert sensitivity.recall(tmp_path, "key0") is None
    assert len(list(tmp_path.iterdir())) == 32
    sensitivity.remember(tmp_path, "short", Sensitivities({"a": [1.0]}, {}))
    assert sensitivity.recall(tmp_path, "short") is None


def test_a_measured_copy_is_no_larger_than_a_plain_one_and_is_loaded(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    plain, measured = (
        copied(folder, tmp_path / name, FOUR, recipe=name if name == MEASURED else "", checks=True)
        for name in ("plain", MEASURED)
    )
    assert measured.plan.num_bytes <= plain.plan.num_bytes
    assert measured.quality is not None
    assert measured.quality.kl < 0.1
    network, _ = open_network(tmp_path / MEASURED)
    mx.eval(network(TOKENS))
