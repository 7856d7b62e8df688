"""Variants computed beside a network are those of the changed network, and losses follow from them."""

from pathlib import Path

import mlx.core as mx
import pytest

from adapters.mlx.loading.network import open_network
from adapters.mlx.quantising import sensitivity
from adapters.mlx.quantising.layerwise import Layerwise, Unmeasurable, Variant, qualities
from adapters.mlx.quantising.rounding import dequantised, fitted, quantised
from adapters.mlx.quantising.sensitivity import FORMS, Matrix, as_parts, measure, parts_of
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
    assert (same.kl, same.agreement, same.perplexity) == (
        pytest.approx(0, abs=1e-6),
        1.0,
        pytest.approx(same.source_perplexity),
    )
    assert 0 < others[0].kl < others[1].kl < others[2].kl
    assert same.num_tokens == 16


# ---- fitted ranges ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_fitted_ranges_lose_less_in_every_group_and_in_the_same_form(bits: int) -> None:
    mx.random.seed(2)
    weight, form = mx.random.normal((16, 128)), Quantisation("affine", bits, 32)
    errors = [
        mx.sum(mx.square(dequantised(weight, form, fits=fits) - weight).reshape(-1, 32), axis=1)
        for fits in (False, True)
    ]
    assert bool(mx.all(errors[1] <= errors[0] + 1e-6))
    assert float(mx.sum(errors[1])) < float(mx.sum(errors[0]))
    plain, better = (quantised(weight, form, fits=fits) for fits in (False, True))
    assert [(part.shape, part.dtype) for part in plain] == [(part.shape, part.dtype) for part in better]
    assert bool(mx.array_equal(fitted(mx.zeros((2, 64)), form), mx.zeros((2, 64))))


# ---- sensitivities ---------------------------------------------------------------------------------------------------


def test_parts_and_their_bytes_are_those_that_are_written(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source", mx.bfloat16)
    network, _ = open_network(folder)
    found = matrices(network)
    together = {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"}
    assert together in [set(paths) for paths in parts_of(found)]
    assert sorted(path for paths in parts_of(found) for path in paths) == sorted(matrix.path for matrix in found)
    losses = measure(folder, PLAIN_USE, found, [[1, 2, 3, 4], [4, 5, 6, 7]], lambda done, total: None)
    for part in as_parts(losses, found):
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
    (tmp_path / "memory" / "sensitivities.json").write_text('{"a": 1}')
    quantiser(tmp_path / "memory").plan(order, report)
    assert QuantPhase.MEASURING in phases


def test_what_is_remembered_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    losses = {"a": [float(number) for number in range(len(FORMS))]}
    sensitivity.remember(file, "key", losses)
    assert sensitivity.recall(file, "key") == losses
    assert sensitivity.recall(file, "other") is None
    for text in ("", "[]", '{"key": 1}', '{"key": {"a": [1]}}', '{"key": {"a": "' + "x" * len(FORMS) + '"}}'):
        file.write_text(text)
        assert sensitivity.recall(file, "key") is None


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
