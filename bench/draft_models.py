"""Draft models: Cairn beside mlx_lm's `--draft-model` and `--num-draft-tokens`, one request at a time, in one run.

    python -m bench.draft_models [--tokens 256] [--rounds 5] [--layers 2] [--json FILE]

Each embedded model continues a text greedily; the draft model is `cairn-demo` without its upper layers. Reported: the
tokens a second of each way as a ratio to mlx_lm's plain decoding (the median of rounds in which all take turns), and
whether its tokens are the same. mlx_lm refuses to draft for hybrid models; the table has its error.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from adapters.system.blas import load_blas

load_blas()

import mlx.core as mx  # noqa: E402 - a BLAS counts only before MLX
from mlx_lm.generate import generate_step, speculative_generate_step  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

from adapters.huggingface.model_folder import embedded_folder  # noqa: E402
from adapters.mlx.engine import MlxEngine  # noqa: E402
from adapters.mlx.runtime.device import describe_device  # noqa: E402
from adapters.system.clock import SystemClock  # noqa: E402
from adapters.tokenizers.loader import HfTokenizerLoader  # noqa: E402
from application.ports.compute import DecodeStart, LoadedModel  # noqa: E402
from application.services.token_side.event_batcher import EventBatcher  # noqa: E402
from application.services.token_side.speculation import SequenceDrafts, Speculation  # noqa: E402
from bench.common.results import Results  # noqa: E402
from domain.id_row import IdRow  # noqa: E402
from domain.ids import ModelId, SequenceId  # noqa: E402
from domain.models.model_card import LoadOptions, ModelSource  # noqa: E402
from domain.prefix.prompt_content import EncodedPrompt  # noqa: E402
from domain.request.sampling import SamplingParams  # noqa: E402
from domain.scheduling.sequence import Sequence as TokenSequence  # noqa: E402
from domain.speculation.drafter import SpeculationMode  # noqa: E402
from tests.support.engines.finish_load import finish_load  # noqa: E402
from tests.support.engines.sync_engine import submission  # noqa: E402

Way = Callable[[IdRow], Iterator[int]]
"""Yields the tokens that continue a prompt."""


def without_upper_layers(folder: Path, num_layers: int, at: Path) -> Path:
    shutil.copytree(folder, at)
    config = json.loads((folder / "config.json").read_text())
    (at / "config.json").write_text(json.dumps({**config, "num_hidden_layers": num_layers}))
    weights: dict[str, mx.array] = mx.load(str(folder / "model.safetensors"))  # type: ignore[assignment]
    upper = tuple(f"model.layers.{index}." for index in range(num_layers, config["num_hidden_layers"]))
    kept = {name: weight for name, weight in weights.items() if not name.startswith(upper)}
    mx.save_safetensors(str(at / "model.safetensors"), kept)
    return at


def of_mlx_lm(folder: Path, draft: Path | None, num_draft_tokens: int) -> Way:
    def opened(path: Path) -> Any:
        model = load_model(path)[0]
        model.set_dtype(mx.float32)  # what Cairn computes in on a CPU
        return model

    model, drafter = opened(folder), None if draft is None else opened(draft)

    def tokens(prompt: IdRow) -> Iterator[int]:
        ids = mx.array(list(prompt))
        found: Any = generate_step(ids, model, max_tokens=-1)
        if drafter is not None:
            limits = {"num_draft_tokens": num_draft_tokens, "max_tokens": 1 << 20}
            found = speculative_generate_step(ids, model, drafter, **limits)
        return (int(token) for token, *_ in found)

    return tokens


def of_cairn(model: LoadedModel, ids: Iterator[int]) -> Way:
    def tokens(prompt: IdRow) -> Iterator[int]:
        id, speculation = SequenceId(next(ids)), Speculation(EventBatcher(SystemClock()))
        model.open(id)
        model.prefill(id, prompt[:-1])
        model.start_decode(id, prompt[-1:], DecodeStart(prompt, SamplingParams(temperature=0), seed=0))
        sequence = TokenSequence(id, prompt, 1 << 20)
        asked = submission("bench", model.description.id, EncodedPrompt(prompt), 1 << 20)
        is_off = model.description.speculation is SpeculationMode.OFF
        rows = {id: None if is_off else SequenceDrafts(sequence, asked, model.description)}
        try:
            while True:
                (result,) = speculation.decode_model(model, rows)
                sequence.output_ids += result.token_ids
                yield from result.token_ids
        finally:
            model.close([id])

    return tokens


def timed(way: Way, prompt: IdRow, num_tokens: int) -> tuple[float, list[int]]:
    """Returns tokens a second after the first one, and the tokens."""
    tokens = way(prompt)
    found, begun = [next(tokens)], time.perf_counter()
    found += islice(tokens, num_tokens - 1)
    return (num_tokens - 1) / (time.perf_counter() - begun), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "draft_models", mlx_device=describe_device())
    text = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        engine, ids = MlxEngine(Path(folder)), iter(range(1 << 30))
        small = embedded_folder(ModelId("cairn-demo"))
        assert small is not None
        draft = without_upper_layers(small, options.layers, Path(folder) / "draft")
        for name in ("cairn-demo", "cairn-demo-hybrid"):
            path = embedded_folder(ModelId(name))
            assert path is not None
            source = ModelSource(ModelId(name), str(path))
            prompt = HfTokenizerLoader().load(source).encode(text).token_ids[:300]
            ways = {f"mlx_lm, {count} draft tokens": of_mlx_lm(path, draft, count) for count in (2, 4)}
            ways |= {"mlx_lm": of_mlx_lm(path, None, 0)}
            for mode in ("off", "draft", "mtp", "ngram", "auto"):
                asked = LoadOptions(speculation=SpeculationMode(mode), draft=str(draft) if mode == "draft" else "")
                ways[f"Cairn, {mode}"] = of_cairn(finish_load(engine.load(source, asked)), ids)
            compare(name, ways, prompt, options, results)


def compare(name: str, ways: dict[str, Way], prompt: IdRow, options: argparse.Namespace, results: Results) -> None:
    """Lets all ways take turns; the order is another one in each round."""
    speeds: dict[str, list[float]] = {way: [] for way in ways}
    texts: dict[str, list[int]] = {}
    for number in range(-1, options.rounds):
        for way in [way for way in sorted(ways, key=lambda way: hash((way, number))) if way in speeds]:
            try:
                speed, texts[way] = timed(ways[way], prompt, options.tokens)
                speeds[way] += [speed] if number >= 0 else []
            except Exception as error:
                del speeds[way]
                results.add("failed", model=name, way=way, error=str(error))
                print(f"{name} {way:24s}: {type(error).__name__}: {error}", flush=True)
    for way, found in speeds.items():
        ratio = statistics.median(one / plain for one, plain in zip(found, speeds["mlx_lm"], strict=True))
        is_same = texts[way] == texts["mlx_lm"]
        results.add("speed", model=name, way=way, ratio=ratio, rate=statistics.median(found), is_same=is_same)
        print(f"{name} {way:24s}: {ratio:.2f}, {statistics.median(found):.0f} a second, the same text: {is_same}")


if __name__ == "__main__":
    main()
