"""Train the embedding model: `python -m training.train_embedder --data OUT_OF_PREPARE_PAIRS --out FOLDER`.

A small Qwen3 trunk; the mean of its hidden states is the vector. Each text of a pair has to find the other among
all texts of a batch (InfoNCE), by the first 64, 128 and 256 numbers alike. One CUDA GPU; transformers beside PyTorch.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3Config, Qwen3Model

from training.pairs.prepare_pairs import HELD_OUT, SIZE

DIMENSIONS = (64, 128, 256)
_TEMPERATURE = 0.04
_PEAK_RATE = 3e-3
_LOG_EVERY_S = 15.0


class Pairs:
    """The pairs on the device, as padded rows. `kept`: those to learn from; `held_out`: the others."""

    def __init__(self, file: Path, device: str) -> None:
        data = np.load(file)
        lengths = data["lengths"].astype(np.int64)
        rows = np.zeros((len(lengths), lengths.max()), np.int16)
        rows[np.arange(rows.shape[1])[None] < lengths[:, None]] = data["ids"].astype(np.int16)
        self._rows = torch.from_numpy(rows).to(device)
        self._lengths = torch.from_numpy(lengths).to(device)
        self._groups = torch.from_numpy(data["groups"].astype(np.int64)).to(device)
        longest = torch.maximum(self._lengths[0::2], self._lengths[1::2])
        is_held_out = self._groups % HELD_OUT == 0
        self.kept = torch.nonzero(~is_held_out)[:, 0]
        self.held_out = torch.nonzero(is_held_out)[:, 0]
        self.by_length = self.kept[torch.argsort(longest[self.kept])]

    def batch(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ids [2 * pairs, tokens] (first texts, then second), lengths, and groups [pairs]."""
        at = torch.cat([2 * chosen, 2 * chosen + 1])
        lengths = self._lengths[at]
        return self._rows[at, : int(lengths.max())].long(), lengths, self._groups[chosen]


def vectors(model: Qwen3Model, ids: Tensor, lengths: Tensor) -> Tensor:
    """The mean over each row's hidden states behind the final norm; padding on the right changes none."""
    hidden = model(input_ids=ids, use_cache=False).last_hidden_state.float()
    is_text = torch.arange(ids.shape[1], device=ids.device)[None] < lengths[:, None]
    return (hidden * is_text[..., None]).sum(1) / lengths[:, None]


def loss_of(found: Tensor, groups: Tensor) -> Tensor:
    """The mean loss over both directions and DIMENSIONS. Other texts of a pair's group do not count against it."""
    same = (groups[:, None] == groups[None]) & ~torch.eye(len(groups), dtype=torch.bool, device=groups.device)
    wanted, total = torch.arange(len(groups), device=groups.device), found.new_zeros(())
    for size in DIMENSIONS:
        one, other = functional.normalize(found[:, :size], dim=-1).chunk(2)
        scores = (one @ other.T / _TEMPERATURE).masked_fill(same, -1e4)
        total = total + functional.cross_entropy(scores, wanted) + functional.cross_entropy(scores.T, wanted)
    return total / (2 * len(DIMENSIONS))


@torch.no_grad()
def found_share(model: Qwen3Model, pairs: Pairs, size: int) -> float:
    """The share of held-out pairs whose second text is the nearest of 2,000 to the first, by `size` numbers."""
    ids, lengths, groups = pairs.batch(pairs.held_out[:2000])
    with torch.autocast(ids.device.type, torch.bfloat16):
        one, other = functional.normalize(vectors(model, ids, lengths)[:, :size], dim=-1).chunk(2)
    return float((groups[(one @ other.T).argmax(1)] == groups).float().mean())


def train(model: Qwen3Model, pairs: Pairs, options: argparse.Namespace, device: str) -> dict[str, object]:
    """Trains until the time is up; a batch has pairs of similar length. Returns what the run gave."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.05, betas=(0.9, 0.98))
    started, next_log, num_steps = time.monotonic(), _LOG_EVERY_S, 0
    while (progress := (time.monotonic() - started) / (options.minutes * 60)) < 1.0:
        for group in optimizer.param_groups:
            group["lr"] = _PEAK_RATE * min(1.0, (num_steps + 1) / 200, max(1e-3, (1.0 - progress) / 0.9))
        near = int(torch.randint(len(pairs.by_length), ()))
        span = pairs.by_length[max(0, near - 4 * options.pairs) : near + 4 * options.pairs]
        chosen = span[torch.randperm(len(span), device=device)[: options.pairs]]
        ids, lengths, groups = pairs.batch(chosen)
        with torch.autocast(device, torch.bfloat16):
            found = vectors(model, ids, lengths)
        loss = loss_of(found, groups)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        num_steps += 1
        if time.monotonic() - started > next_log:
            share = found_share(model, pairs, DIMENSIONS[-1])
            print(f"step {num_steps}, loss {loss.item():.3f}, held out {share:.3f}", flush=True)
            next_log += _LOG_EVERY_S
    shares = {size: round(found_share(model, pairs, size), 3) for size in DIMENSIONS}
    return {"steps": num_steps, "pairs": num_steps * options.pairs, "held_out": shares}


def export(model: Qwen3Model, data: Path, out: Path) -> None:
    """Writes the folder as sentence-transformers has it: trunk, tokenizer, pooling by the mean, normalised."""
    model.to(torch.bfloat16).save_pretrained(out)
    shutil.copy(data / "tokenizer.json", out)
    kind = "sentence_transformers.models"
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 512,
            "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>",
            "padding_side": "right",
            "clean_up_tokenization_spaces": False,
        },
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"{kind}.{name}"}
            for index, (path, name) in enumerate(modules)
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": DIMENSIONS[-1], "pooling_mode_mean_tokens": True},
        "config_sentence_transformers.json": {"prompts": {}, "similarity_fn_name": "cosine"},
    }
    for name, value in files.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text(json.dumps(value, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--pairs", type=int, default=4096, help="pairs in a step")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=SIZE,
        hidden_size=DIMENSIONS[-1],
        num_hidden_layers=4,
        intermediate_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        matryoshka_dimensions=list(DIMENSIONS),
        eos_token_id=0,
        pad_token_id=None,
        bos_token_id=None,
    )
    model = Qwen3Model(config).to(device)
    pairs = Pairs(options.data / "pairs.npz", device)
    note = train(model, pairs, options, device)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "training.json").write_text(json.dumps(note, indent=1), encoding="utf-8")
    print(json.dumps(note))
    export(model, options.data, options.out)


if __name__ == "__main__":
    main()
