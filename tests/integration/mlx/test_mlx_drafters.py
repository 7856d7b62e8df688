"""Models with a drafter of their own: its tokens are accepted or not, and the answer is that of plain decoding."""

import json
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.plan import check_source, plan_model
from adapters.mlx.model import MlxModel
from application.ports.compute import DecodeStart, Draft, LoadedModel
from domain.errors import ModelLoadFailed
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.state_layout import StateKind
from domain.request.sampling import SamplingParams
from domain.speculation.drafter import Drafter, SpeculationMode
from tests.support.effort import some_of
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.demo_chats import tokenizer
from tests.support.mlx.tiny_heads import FAMILIES, head_folder, head_weights, load_head
from tests.support.mlx.tiny_models import build, write_folder
from tests.support.stores.state_replay import open_at, prompt_of

PROMPT = prompt_of(60)
OTHER = prompt_of(45, salt=3)
GREEDY = SamplingParams(temperature=0)
DRAWN = SamplingParams(temperature=1.0, top_p=0.95, presence_penalty=0.3)
DEPTH = 3
NUM_NEW = 24

_REPEAT = (
    "<|im_start|>user\nRepeat: The village has a school, a bakery and a short railway line. Most visitors come in"
    " autumn, when the air is clear.<|im_end|>\n<|im_start|>assistant\n"
)
"""Its answer is longer than NUM_NEW tokens."""


class Answer(NamedTuple):
    """The tokens of an answer, and how many were proposed and accepted on the way."""

    token_ids: list[int]
    num_proposed: int
    num_accepted: int


def begin(model: LoadedModel, prompt: tuple[int, ...], sampling: SamplingParams = GREEDY) -> SequenceId:
    id = open_at(model, prompt)
    model.start_decode(id, prompt[-1:], DecodeStart(prompt, sampling, seed=5))
    return id


def answers(model: LoadedModel, ids: list[SequenceId], depth: int = DEPTH) -> list[Answer]:
    """Decodes sequences together, and closes them."""
    found = {id: Answer([], 0, 0) for id in ids}
    while any(len(one.token_ids) < NUM_NEW for one in found.values()):
        for result in model.decode(ids, {id: Draft((), depth) for id in ids} if depth else {}):
            assert result.error is None, result.error
            assert result.drafter is (model.description.own_drafter if result.num_proposed else None)
            before, proposed, accepted = found[result.id]
            found[result.id] = Answer(
                before + list(result.token_ids), proposed + result.num_proposed, accepted + result.num_accepted
            )
    model.close(ids)
    return [Answer(one.token_ids[:NUM_NEW], *one[1:]) for one in found.values()]


def answer(model: LoadedModel, prompt: tuple[int, ...] = PROMPT, sampling: SamplingParams = GREEDY) -> Answer:
    return answers(model, [begin(model, prompt, sampling)])[0]


def plain(model: LoadedModel, prompt: tuple[int, ...] = PROMPT, sampling: SamplingParams = GREEDY) -> list[int]:
    return answers(model, [begin(model, prompt, sampling)], depth=0)[0].token_ids


@pytest.fixture(scope="module", params=["mimo", "qwen3_5"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MlxModel:
    """With full attention only, and with recurrent layers."""
    return load_head(head_folder(request.param, tmp_path_factory.mktemp("models") / request.param))


# ---- heads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", some_of(FAMILIES, {"mimo", "qwen3_next", "qwen3_5_moe", "deepseek_v32", "glm4_moe"}))
@pytest.mark.exact
def test_a_right_head_is_accepted(name: str, tmp_path: Path) -> None:
    model = load_head(head_folder(name, tmp_path / name))
    assert model.description.own_drafter is Drafter.HEAD
    found = answer(model)
    assert found.token_ids == plain(model)
    assert found.num_accepted >= 0.8 * found.num_proposed > 0


def test_the_embedded_head_expects_what_its_trunk_says() -> None:
    """It was trained outside: another hidden state, position or order of joining than here would make it guess."""
    source = ModelSource(EMBEDDED_IDS[1], str(embedded_folder(EMBEDDED_IDS[1])))
    model = finish_load(MlxEngine().load(source, LoadOptions(dtype="float32")))
    prompt = tuple(tokenizer().encode(_REPEAT, add_special_tokens=False).ids)
    found = answer(model, prompt)
    assert found.token_ids == plain(model, prompt)
    assert found.num_accepted >= 0.6 * found.num_proposed > 0


def test_drafts_are_drawn_with_the_noise_of_their_positions(model: MlxModel) -> None:
    found = answer(model, sampling=DRAWN)
    assert found.token_ids == plain(model, sampling=DRAWN)
    assert found.num_accepted >= 0.8 * found.num_proposed > 0


@pytest.mark.parametrize("name", ["mimo", "qwen3_5"])
@pytest.mark.exact
def test_a_random_head_changes_no_token(name: str, tmp_path: Path) -> None:
    model = load_head(head_folder(name, tmp_path / name, is_right=False))
    found = answer(model)
    assert found.token_ids == plain(model)
    assert found.num_accepted < found.num_proposed


@pytest.mark.parametrize("name", [name for name in FAMILIES if name.startswith("qwen3_5")])
def test_a_published_head_is_that_of_a_converted_one(name: str, tmp_path: Path) -> None:
    """Qwen publishes experts one by one, and norms less one."""
    found = [answer(load_head(head_folder(name, tmp_path / str(form), is_published=form))) for form in (False, True)]
    assert found[0] == found[1]


@pytest.mark.exact
def test_a_quantised_head_is_loaded(tmp_path: Path) -> None:
    folder = head_folder("mimo", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    network = build("mimo", mx.bfloat16, vocab_size=config["vocab_size"])
    prefix = "model.mtp_layers.0."
    head = {name.removeprefix(prefix): one for name, one in head_weights(network, is_right=True).items()}
    holder = nn.Module()
    for name in ("input_proj.weight", "mlp.down_proj.weight"):
        weight, path = head.pop(name), name.removesuffix(".weight")
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        linear.weight = weight
        holder = linear.to_quantized(group_size=32, bits=8)
        head |= {f"{path}.{leaf}": array for leaf, array in tree_flatten(holder.parameters())}
    mx.save_safetensors(str(folder / "model-head.safetensors"), {prefix + name: one for name, one in head.items()})
    model = load_head(folder)
    assert model.description.own_drafter is Drafter.HEAD, model.description.drafter_note
    assert answer(model).token_ids == plain(model)


@pytest.mark.exact
def test_a_model_whose_head_is_incomplete_is_served_without_one(tmp_path: Path) -> None:
    folder = head_folder("mimo", tmp_path / "m")
    head = dict(mx.load(str(folder / "model-head.safetensors")))
    del head["model.mtp_layers.0.mlp.up_proj.weight"]
    mx.save_safetensors(str(folder / "model-head.safetensors"), head)
    model = load_head(folder)
    assert model.description.own_drafter is None
    assert "head" in model.description.drafter_note
    assert "up_proj" in model.description.drafter_note
    assert len(plain(model)) == NUM_NEW


@pytest.mark.exact
def test_a_head_of_an_unknown_family_is_named(tmp_path: Path) -> None:
    folder = write_folder("nemotron_h", tmp_path / "m", mx.float32)
    mx.save_safetensors(str(folder / "model-head.safetensors"), {"mtp.layers.0.norm.weight": mx.ones(64)})
    described = load_head(folder).description
    assert described.own_drafter is None
    assert "nemotron_h" in described.drafter_note


def test_a_head_is_planned_with_the_model(tmp_path: Path) -> None:
    folder = head_folder("mimo", tmp_path / "m")
    planned, loaded = plan_model(ModelSource(ModelId("m"), str(folder)), LoadOptions()), load_head(folder).description
    assert planned.layout == loaded.layout
    assert planned.memory.state_bytes(100) == loaded.memory.state_bytes(100)
    assert planned.memory.weight_bytes == loaded.weight_bytes


def test_a_head_that_is_not_wanted_is_not_loaded(tmp_path: Path) -> None:
    folder = head_folder("mimo", tmp_path / "m")
    with_it = load_head(folder)
    for mode in (SpeculationMode.OFF, SpeculationMode.NGRAM, SpeculationMode.DRAFT):
        without = load_head(folder, LoadOptions(speculation=mode))
        assert without.description.own_drafter is None
        assert without.description.weight_bytes < with_it.description.weight_bytes
        assert without.description.layout.describe() != with_it.description.layout.describe()
    assert plain(with_it) == plain(without)


def test_a_head_leaves_the_model_as_it_can_be_cut(model: MlxModel) -> None:
    """The head's state is of a kind that the model has already."""
    alone = build(model.description.model_type).make_cache() if model.description.layout.needs_snapshots else []
    kinds = [layer.kind for _, layer in model.description.layout.leaves()]
    assert (StateKind.RECURRENT in kinds) == bool(alone)
    assert kinds[-2:] == [StateKind.SLICED, StateKind.RECURRENT if alone else StateKind.SLICED]


# ---- the drafter's state -------------------------------------------------------------------------------------------


@pytest.mark.exact
def test_rows_that_decode_together_draft_together(model: MlxModel) -> None:
    prompts, samplings = [PROMPT, OTHER, PROMPT[:37]], [GREEDY, DRAWN, GREEDY]
    expected = [plain(model, *row) for row in zip(prompts, samplings, strict=True)]
    found = answers(model, [begin(model, *row) for row in zip(prompts, samplings, strict=True)])
    assert [one.token_ids for one in found] == expected
    assert min(one.num_accepted for one in found) >= 0.5 * max(one.num_proposed for one in found) > 0


@pytest.mark.exact
def test_a_row_without_a_wish_for_drafts_gets_none(model: MlxModel) -> None:
    ids = [begin(model, PROMPT), begin(model, OTHER)]
    for _ in range(4):
        results = model.decode(ids, {ids[0]: Draft((), DEPTH)})
    assert [result.num_proposed for result in results] == [0, 0]
    model.close(ids)


@pytest.mark.exact
def test_a_lookup_comes_before_the_drafter(model: MlxModel) -> None:
    expected = plain(model)
    ids = [begin(model, PROMPT), begin(model, PROMPT)]
    for _ in range(2):
        model.decode(ids)
    num_given = 2
    for other, drafter in ((Draft((), DEPTH), Drafter.HEAD), (None, Drafter.NGRAM)):
        looked_up = Draft(tuple(expected[num_given : num_given + 3]), DEPTH)
        results = model.decode(ids, {ids[0]: looked_up, ids[1]: other or looked_up})
        assert [result.drafter for result in results] == [drafter] * 2, "the drafter proposes for all rows or for none"
        assert len({result.token_ids for result in results}) == 1
        num_given += len(results[0].token_ids)
    assert list(results[0].token_ids) == expected[num_given - len(results[0].token_ids) : num_given]
    model.close(ids)


# ---- draft models --------------------------------------------------------------------------------------------------


def with_draft(folder: Path, draft: Path) -> MlxModel:
    return load_head(folder, LoadOptions(draft=str(draft)))


@pytest.mark.parametrize(("name", "sampling"), [("qwen3_next", GREEDY), ("gemma3_text", DRAWN)])
@pytest.mark.exact
def test_a_model_that_drafts_for_itself_is_accepted(name: str, sampling: SamplingParams, tmp_path: Path) -> None:
    folder = write_folder(name, tmp_path / name, mx.float32)
    alone, model = load_head(folder, LoadOptions(speculation=SpeculationMode.OFF)), with_draft(folder, folder)
    assert model.description.own_drafter is Drafter.DRAFT_MODEL
    found = answer(model, sampling=sampling)
    assert found.token_ids == plain(alone, sampling=sampling)
    assert found.num_accepted == found.num_proposed > 0


@pytest.mark.parametrize(
    ("name", "draft"),
    some_of([("llama", "qwen3_next"), ("qwen3_5", "llama"), ("gemma3_text", "mamba2")], {("gemma3_text", "mamba2")}),
)
@pytest.mark.exact
def test_a_draft_model_of_another_family_changes_no_token(name: str, draft: str, tmp_path: Path) -> None:
    folder = write_folder(name, tmp_path / "model", mx.float32)
    model = with_draft(folder, write_folder(draft, tmp_path / "draft", mx.float32, seed=3))
    assert answer(model).token_ids == plain(model)
    ids = [begin(model, PROMPT), begin(model, OTHER)]
    assert [one.token_ids for one in answers(model, ids)] == [plain(model), plain(model, OTHER)]


def test_a_draft_model_is_part_of_the_weights(tmp_path: Path) -> None:
    folder, draft = write_folder("llama", tmp_path / "m"), write_folder("llama", tmp_path / "d", seed=1)
    source = ModelSource(ModelId("m"), str(folder))
    alone, model = load_head(folder).description, with_draft(folder, draft).description
    assert model.weight_bytes == 2 * alone.weight_bytes
    assert model.weights_digest != alone.weights_digest
    assert model.memory.state_bytes(100) == 2 * alone.memory.state_bytes(100)
    assert check_source(source, LoadOptions(draft=str(draft))).weight_bytes == model.weight_bytes


def test_a_draft_model_of_other_tokens_is_refused(tmp_path: Path) -> None:
    folder, draft = write_folder("llama", tmp_path / "m"), write_folder("llama", tmp_path / "d")
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[10:12]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelLoadFailed, match="vocabulary"):
        with_draft(folder, draft)


@pytest.mark.parametrize("is_absent", [True, False])
def test_a_draft_model_that_cannot_be_loaded_is_named(tmp_path: Path, is_absent: bool) -> None:
    folder, draft = write_folder("llama", tmp_path / "m"), tmp_path / "d"
    if not is_absent:
        write_folder("llama", draft)
        (draft / "config.json").write_text('{"model_type": "unheard_of"}')
    options, source = LoadOptions(draft=str(draft)), ModelSource(ModelId("m"), str(folder))
    with pytest.raises(ModelLoadFailed, match=str(draft) if is_absent else "unheard_of"):
        check_source(source, options)
    with pytest.raises(ModelLoadFailed, match=str(draft) if is_absent else "unheard_of"):
        finish_load(MlxEngine().load(source, options))
