"""Models that see: each family's logits equal those of mlx-vlm, however a prompt is cut, restored or batched."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from adapters.mlx.caches.leaves import new_caches
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts, load_folder
from adapters.mlx.loading.weights_digest import Digests
from adapters.mlx.speculation.drafting import DraftModelNetwork, forward
from application.ports.compute import Draft
from domain.errors import ComputeFailed
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions
from domain.speculation.drafter import Drafter
from tests.support.effort import some_of
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_heads import head_weights, quieten
from tests.support.mlx.tiny_models import build
from tests.support.mlx.vision.seers import (
    NUM_NEW,
    Answer,
    Seer,
    answer,
    answers,
    logits_of,
    make_seer,
    open_seer,
    peer_answer,
    prefill,
    start,
)
from tests.support.mlx.vision.tiny_seers import CONFIGS, logits_by_mlx_vlm
from tests.support.stores.state_replay import BLOCK, Captured, new_id

pytest.importorskip("mlx_vlm")

TOLERANCE = 2e-5

OF_EACH_KIND = {"llava", "lfm2_vl", "qwen3_vl", "qwen3_5", "gemma4"}
"""Images as text's positions and as places, beside convolutions and recurrent layers, and attending to themselves."""

every_family = pytest.mark.parametrize("seer", sorted(CONFIGS), indirect=True, scope="module")


@pytest.fixture(scope="module", params=some_of(sorted(CONFIGS), OF_EACH_KIND))
def seer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seer:
    return make_seer(request.param, tmp_path_factory.mktemp(request.param))


@every_family
@pytest.mark.exact
def test_logits_equal_those_of_mlx_vlm(seer: Seer) -> None:
    expected = logits_by_mlx_vlm(seer.name, seer.peer, seer.tokens, seer.seen)

    found = logits_of(seer, [])

    assert found.shape == expected.shape
    assert distance(found, expected) <= TOLERANCE
    without = forward(seer.network, mx.array([seer.tokens]), new_caches(seer.network))[0]
    assert distance(without, expected) > 100 * TOLERANCE


@pytest.mark.exact
def test_logits_are_the_same_however_the_prompt_is_cut(seer: Seer) -> None:
    first, second = seer.media
    cuts = [first.start + 1, first.start + first.length // 2, second.start, second.start + 1, len(seer.tokens) - 1]
    if seer.vision.scheme.is_whole:
        cuts = [first.start, first.end, second.start, len(seer.tokens) - 1]

    assert distance(logits_of(seer, cuts), logits_of(seer, [])) <= TOLERANCE


def distance(found: mx.array, expected: mx.array) -> float:
    return float(mx.max(mx.abs(found - expected)).item())


def assert_same(found: Answer, expected: Answer) -> None:
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=10 * TOLERANCE)


@pytest.mark.exact
def test_an_answer_is_that_of_mlx_vlm(seer: Seer) -> None:
    assert_same(answer(seer, open_seer(seer)), peer_answer(seer))


@pytest.mark.exact
def test_an_answer_in_a_batch_with_a_text_and_another_image_is_that_of_the_row_alone(seer: Seer) -> None:
    first = seer.media[0]
    texts = {"text": list(range(60, 90)), "other": [*seer.tokens[: first.end], 5, 6]}
    media = {"text": [], "other": [first]}

    def opened(name: str) -> SequenceId:
        id = new_id()
        seer.model.open(id)
        seer.model.set_media(id, media[name])
        start(seer, id, texts[name], seer.images)
        return id

    alone = {name: answers(seer, [opened(name)]) for name in texts}
    both = open_seer(seer)
    prefill(seer, both, len(seer.tokens) - 1)
    start(seer, both, seer.tokens, seer.images)
    rows = {"both": both, **{name: opened(name) for name in texts}}
    together = answers(seer, list(rows.values()))
    seer.model.close(list(rows.values()))

    assert_same(together[both], answer(seer, open_seer(seer)))
    for name in texts:
        assert_same(together[rows[name]], next(iter(alone[name].values())))
    seer.model.close(list(seer.model.open_ids()))


@every_family
@pytest.mark.parametrize("where", ["in the first image", "between the images", "behind both"])
def test_an_answer_from_restored_records_is_that_of_a_computed_prompt(seer: Seer, where: str) -> None:
    first, second = seer.media
    if seer.vision.scheme.is_whole and where == "in the first image":
        pytest.skip("no chunk ends there")
    at = {"in the first image": first.start + 3, "between the images": first.end + 1, "behind both": second.end + 1}
    id, captured = open_seer(seer), Captured(at[where])
    prefill(seer, id, captured.position)
    starts = range(0, captured.position - BLOCK + 1, BLOCK)
    captured.blocks = list(seer.model.capture_blocks(id, [(start, start + BLOCK) for start in starts]))
    captured.snapshot = seer.model.capture_snapshot(id, len(captured.blocks) * BLOCK)
    expected = answer(seer, id)

    restored = open_seer(seer, captured.on_host())
    needed = {span.digest for span in seer.media if span.end > captured.position}
    rest = {digest: features for digest, features in seer.images.items() if digest in needed}
    prefill(seer, restored, len(seer.tokens) - 2, rest)
    start(seer, restored, seer.tokens, rest)
    (found,) = answers(seer, [restored]).values()
    seer.model.close([restored])

    assert_same(found, expected)


@every_family
@pytest.mark.exact
def test_records_that_end_in_an_image_that_attends_to_itself_are_those_of_all_of_it(seer: Seer) -> None:
    if not seer.vision.scheme.is_whole:
        pytest.skip("any chunk may end there")
    (span,) = (span for span in seer.media if span.start < 2 * BLOCK < span.end - 1)
    id = open_seer(seer)
    prefill(seer, id, span.end)
    blocks = list(seer.model.capture_blocks(id, [(0, BLOCK), (BLOCK, 2 * BLOCK)]))

    restored = open_seer(seer, Captured(2 * BLOCK, blocks).on_host())

    assert_same(answer(seer, restored), answer(seer, id))


@pytest.mark.exact
def test_a_preempted_answer_continues_as_if_nothing_had_happened(seer: Seer) -> None:
    expected = answer(seer, open_seer(seer))
    done = [token for token, _ in expected[:3]]

    again = open_seer(seer)
    prefill(seer, again, len(seer.tokens))
    start(seer, again, [*seer.tokens, *done], {})
    (found,) = answers(seer, [again], NUM_NEW - 3).values()
    seer.model.close([again])

    assert_same(found, expected[3:])


def with_right_head(folder: Path) -> None:
    """Gives a folder a trunk of which one layer counts, and a head that expects what that trunk says."""
    network, _ = finish_load(load_folder(folder, LoadOptions(dtype="float32"), Digests(b"seer")))
    quieten(network)
    path = folder / "model.safetensors"
    weights = cast("dict[str, mx.array]", mx.load(str(path)))
    mx.save_safetensors(str(path), {**weights, **dict(tree_flatten(network.parameters()))})
    mx.save_safetensors(str(folder / "model-head.safetensors"), head_weights(network, is_right=True))


def test_a_head_drafts_behind_images_as_behind_texts(tmp_path: Path) -> None:
    seer = make_seer("qwen3_5", tmp_path, with_right_head)
    assert seer.model.description.own_drafter is Drafter.HEAD
    expected = [token for token, _ in answer(seer, open_seer(seer))]

    found, num_proposed, num_accepted = drafted_answer(seer)

    assert found == expected
    assert num_accepted >= 0.8 * num_proposed > 0


@pytest.mark.exact
def test_a_draft_model_that_does_not_see_changes_no_token(seer: Seer) -> None:
    expected = [token for token, _ in answer(seer, open_seer(seer))]
    network = DraftModelNetwork(seer.network, build("llama", vocab_size=200))
    model = finish_load(assemble(network, ModelId("both"), ModelFacts(CONFIGS[seer.name]), vision=seer.vision))

    found, num_proposed, _ = drafted_answer(replace(seer, network=network, model=model))

    assert found == expected
    assert num_proposed


def drafted_answer(seer: Seer) -> tuple[list[int], int, int]:
    """The tokens, and how many of the drafter's were verified and accepted."""
    id = open_seer(seer)
    prefill(seer, id, len(seer.tokens) - 2)
    start(seer, id, seer.tokens, seer.images)
    found, num_proposed, num_accepted = list[int](), 0, 0
    while len(found) < NUM_NEW:
        (result,) = seer.model.decode([id], {id: Draft((), 2)})
        found += result.token_ids
        num_proposed, num_accepted = num_proposed + result.num_proposed, num_accepted + result.num_accepted

    seer.model.close([id])
    return found[:NUM_NEW], num_proposed, num_accepted


@pytest.mark.exact
def test_states_that_are_taken_over_keep_the_places_of_images(seer: Seer) -> None:
    expected = answer(seer, open_seer(seer))
    end = len(seer.tokens) - 1

    id, heir = open_seer(seer), open_seer(seer)
    prefill(seer, id, end)
    left = seer.model.keep_live(id)
    assert left is not None
    seer.model.take_over(heir, id, end)
    start(seer, heir, seer.tokens, {})
    (inherited,) = answers(seer, [heir]).values()
    seer.model.close([heir])

    assert_same(inherited, expected)


def test_a_chunk_whose_image_was_not_computed_fails_alone(seer: Seer) -> None:
    id = open_seer(seer)

    with pytest.raises(ComputeFailed, match="image 1 of the prompt was not computed"):
        prefill(seer, id, len(seer.tokens), {})

    assert id not in seer.model.open_ids()


def test_an_image_whose_pixels_do_not_fit_fails_alone(seer: Seer) -> None:
    if seer.name.startswith("gemma4"):
        pytest.skip("mlx-vlm fills what is too long by repeating")
    with pytest.raises(ComputeFailed, match="an image could not be computed"):
        seer.model.encode_image(seer.seen[0]._replace(num_features=seer.seen[0].num_features + 1).prepared)


def test_the_weights_of_the_tower_are_counted(seer: Seer) -> None:
    assert seer.model.description.weight_bytes > seer.vision.weight_bytes > 0
    assert seer.model.description.memory.weight_bytes == seer.model.description.weight_bytes
