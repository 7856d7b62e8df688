"""Check an exported model under mlx-lm: `python -m training.check_export FOLDER [--chats 60] [--bits 4]`.

Compares its logits with those that were exported with it, in one pass and in pieces through the cache; lets it answer
chats; and, where asked, compares transformers' logits and those of a quantised copy. Needs mlx-lm.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm import generate, load
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import quantize_model, save

from training.tasks import TASKS, Draw
from training.text.corpus import load_material

_CHAT_SEED = 5
_TASKS = ("kv", "needle", "memory", "copy", "arith", "listq", "jsonx", "transform")
_PIECES = (64, 1, 100)
"""Tokens of the first calls through the cache; the last call takes the rest."""


class Reference(NamedTuple):
    """ids: [tokens]; logits: [tokens, vocabulary], stored in float16; best: the most likely ids."""

    ids: np.ndarray
    logits: np.ndarray
    best: np.ndarray


def read_reference(folder: Path) -> Reference:
    with np.load(folder / "ref_logits.npz") as stored:
        return Reference(stored["ids"], stored["logits"].astype(np.float32), stored["argmax"])


def describe(logits: np.ndarray, reference: Reference) -> str:
    """Relative distance and share of equal most likely ids; storing the reference in float16 alone gives 3e-4."""
    distance = np.linalg.norm(logits - reference.logits) / np.linalg.norm(reference.logits)
    return f"relative distance {distance:.2e}, same best token {(logits.argmax(-1) == reference.best).mean():.3f}"


def all_at_once(model: Callable[..., mx.array], ids: np.ndarray) -> np.ndarray:
    return np.array(model(mx.array(ids)[None])[0].astype(mx.float32))


def in_pieces(model: Any, ids: np.ndarray) -> np.ndarray:
    """The same logits through the cache, a few tokens a call."""
    cache = make_prompt_cache(model)
    bounds = np.cumsum(_PIECES)
    pieces = [piece for piece in np.split(ids, bounds[bounds < len(ids)]) if len(piece)]
    return np.concatenate([np.array(model(mx.array(piece)[None], cache=cache)[0]) for piece in pieces])


def exact_answers(model: Any, tokenizer: Any, num_chats: int) -> dict[str, str]:
    """By task: how many first answers were exactly right, decoded greedily."""
    draw = Draw(_CHAT_SEED, load_material())
    tasks = [task for task in TASKS if task.name in _TASKS]
    counts: dict[str, list[int]] = {}
    for _ in range(num_chats):
        task = draw.random.choice(tasks)
        episode = task.write(draw, draw.random.choice((200, 600, 1500)))
        if episode is None or episode.turns[1].role != "assistant":
            continue
        question, answer = episode.turns[0].text, episode.turns[1].text
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False)
        given = generate(model, tokenizer, prompt, max_tokens=120).strip()
        count = counts.setdefault(task.name, [0, 0])
        count[0] += given == answer.strip()
        count[1] += 1
    return {task: f"{right}/{asked}" for task, (right, asked) in sorted(counts.items())}


def transformers_logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    """The result of transformers on the same files, in float32."""
    import torch
    import transformers
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] == "qwen3_5":
        model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**config["text_config"]))
        stored = load_file(folder / "model.safetensors")
        weights = {name.replace("model.language_model.", "model."): tensor for name, tensor in stored.items()}
        unread = model.load_state_dict(weights, strict=False)
        assert not unread.unexpected_keys, unread.unexpected_keys
        model.tie_weights()
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model.float().eval()(torch.tensor(ids)[None]).logits[0].numpy()


def check_quantised(folder: Path, bits: int, reference: Reference) -> str:
    """Quantise a copy, save it, load it again and compare."""
    model, tokenizer, config = load(str(folder), return_config=True)
    model, config = quantize_model(model, config, 64, bits)
    with tempfile.TemporaryDirectory() as copy:
        save(copy, str(folder), model, tokenizer, config)
        quantised, _ = load(copy)
        size_bytes = sum(path.stat().st_size for path in Path(copy).iterdir())
        return f"{size_bytes / 1e6:.1f} MB, {describe(all_at_once(quantised, reference.ids), reference)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chats", type=int, default=0)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--bits", type=int, choices=(4, 8))
    options = parser.parse_args()
    reference = read_reference(options.folder)
    model, tokenizer = load(str(options.folder))
    print("as stored:", describe(all_at_once(model, reference.ids), reference))
    model.set_dtype(mx.float32)
    whole = all_at_once(model, reference.ids)
    print("in float32:", describe(whole, reference))
    print(
        "in pieces through the cache: largest difference", float(np.abs(in_pieces(model, reference.ids) - whole).max())
    )
    if options.transformers:
        print("transformers:", describe(transformers_logits(options.folder, reference.ids), reference))
    if options.chats:
        print("exact first answers:", exact_answers(model, tokenizer, options.chats))
    if options.bits:
        print(f"{options.bits} bits:", check_quantised(options.folder, options.bits, reference))


if __name__ == "__main__":
    main()
