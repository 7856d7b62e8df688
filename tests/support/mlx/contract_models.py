"""The models that the compute port's contract is held against: the toy engine's and tiny MLX ones of each layout."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from adapters.fake.engine import FakeEngine
from adapters.fake.options import LAYOUTS, FakeOptions
from application.ports.compute import DecodeResult, DecodeStart, LoadedModel
from domain.ids import ModelId, SequenceId
from domain.memory.kv_bits import KVBits
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.sampling import SamplingParams
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_heads import head_folder, load_head
from tests.support.mlx.tiny_models import tiny_model
from tests.support.stores.state_replay import open_at, prompt_of

PROMPT = prompt_of(140, vocab_size=250)
OTHER = prompt_of(90, 3, vocab_size=250)
GREEDY = SamplingParams(temperature=0)


def _fake(layout: str, runs_ahead: bool) -> LoadedModel:
    options = FakeOptions(LAYOUTS[layout], runs_ahead=runs_ahead, eos_every=5)
    source = ModelSource(ModelId(layout), f"fake:{layout}")
    return finish_load(FakeEngine(default=options).load(source, LoadOptions()))


def _headed(name: str) -> LoadedModel:
    with TemporaryDirectory() as folder:
        return load_head(head_folder(name, Path(folder) / name))


MODELS: dict[str, Callable[[], LoadedModel]] = {
    **{f"fake-{name}": cache(partial(_fake, name, index % 2 == 0)) for index, name in enumerate(LAYOUTS)},
    **{
        f"mlx-{name}": cache(partial(tiny_model, name))
        for name in ("llama", "gemma3_text", "falcon_h1", "mamba2", "gemma2")
    },
    **{
        f"mlx-{name} in {bits.keys}/{bits.values} bits": cache(partial(tiny_model, name, kv_bits=bits))
        for name, bits in (("llama", KVBits(8, 8)), ("falcon_h1", KVBits(8, 4)))
    },
    **{f"mlx-{name} with a head": cache(partial(_headed, name)) for name in ("mimo", "qwen3_5")},
}
"""Each is made once a process, on its first use."""

OF_EACH_LAYOUT = {name for name in MODELS if name.startswith("fake-")} | {
    *("mlx-gemma3_text", "mlx-falcon_h1", "mlx-llama in 8/8 bits")
}
"""Windows beside full attention, recurrent state with full attention, and what is kept in fewer bits."""

every_model = pytest.mark.parametrize("model", MODELS, indirect=True, scope="module")
"""For the behaviours that find most; the others are tested on a model of each layout, and on all by a long run."""


def start(
    model: LoadedModel,
    prompt: tuple[int, ...],
    sampling: SamplingParams = GREEDY,
    seed: int = 1,
    min_tokens: int = 0,
) -> SequenceId:
    id, ends = open_at(model, prompt), model.description.eos_token_ids
    model.start_decode(
        id, prompt[-1:], DecodeStart(prompt, sampling, seed=seed, min_tokens=min_tokens, eos_token_ids=ends)
    )
    return id


def step(model: LoadedModel, id: SequenceId) -> DecodeResult:
    (result,) = model.decode([id])
    assert result.error is None, result.error
    return result


def generate(model: LoadedModel, num_new: int, sampling: SamplingParams = GREEDY, seed: int = 1) -> list[int]:
    id = start(model, PROMPT, sampling, seed)
    output = [step(model, id).token_ids[0] for _ in range(num_new)]
    model.close([id])
    return output
