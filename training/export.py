"""A trained model as a folder in Hugging Face form, which transformers and mlx-lm load.

Beside the model: training.json (how it came about) and ref_logits.npz, the float32 logits of one chat with the
exported weights, computed without compilation on the CPU. What loads the folder must reproduce them.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from training.model.network import Network
from training.model.shape import Shape
from training.tasks import Draw, Material, write_conversation
from training.text.corpus import TOKENIZER
from training.text.encoder import Encoder

_REFERENCE_SEED = 99
_REFERENCE_TOKENS = 300


def export(
    folder: Path,
    shape: Shape,
    parameters: Mapping[str, Tensor],
    material: Material,
    encoder: Encoder,
    note: Mapping[str, object],
) -> None:
    """Write the folder; weights in bfloat16, decay rates in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: _rounded(name, tensor) for name, tensor in parameters.items()}
    prefix = "model.language_model." if shape.is_hybrid else "model."
    named = {name.replace("model.", prefix, 1): tensor for name, tensor in weights.items()}
    save_file(named, str(folder / "model.safetensors"), metadata={"format": "pt"})
    _write_json(folder / "config.json", shape.config(encoder.turn_end, encoder.text_end))
    _write_json(
        folder / "generation_config.json",
        {"eos_token_id": [encoder.turn_end, encoder.text_end], "pad_token_id": encoder.text_end, "do_sample": False},
    )
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    _write_reference(folder, shape, weights, material, encoder)
    _write_json(folder / "training.json", note)


def _rounded(name: str, tensor: Tensor) -> Tensor:
    dtype = torch.float32 if name.endswith("A_log") else torch.bfloat16
    return tensor.detach().to(dtype).cpu().contiguous()


@torch.no_grad()
def _write_reference(
    folder: Path, shape: Shape, weights: Mapping[str, Tensor], material: Material, encoder: Encoder
) -> None:
    chat = write_conversation(Draw(_REFERENCE_SEED, material), _REFERENCE_TOKENS, encoder)
    network = Network(shape, torch.float32, _REFERENCE_TOKENS, "cpu")
    logits = network.logits(torch.tensor([chat.ids]), {name: tensor.float() for name, tensor in weights.items()})
    values = logits.numpy()
    np.savez_compressed(
        folder / "ref_logits.npz", ids=np.array(chat.ids), logits=values.astype(np.float16), argmax=values.argmax(-1)
    )


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


__all__ = ("export",)
