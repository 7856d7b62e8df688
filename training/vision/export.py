"""The trained vision model's weights and settings, in Hugging Face form."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from training.vision.shape import SeeingShape
from training.vision.tokenizer import SeeingEncoder


def export_weights(
    folder: Path,
    shape: SeeingShape,
    parameters: Mapping[str, Tensor],
    encoder: SeeingEncoder,
    note: Mapping[str, object],
) -> None:
    """Beside the tokenizer's files: weights in bfloat16, the settings, and training.json."""
    weights = {name: tensor.detach().to(torch.bfloat16).cpu().contiguous() for name, tensor in parameters.items()}
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    ends = [encoder.turn_end, encoder.text_end]
    files = {
        "config.json": shape.config(encoder.image_id, encoder.turn_end, encoder.text_end),
        "generation_config.json": {"eos_token_id": ends, "pad_token_id": encoder.text_end, "do_sample": False},
        "training.json": note,
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=1), encoding="utf-8")


__all__ = ("export_weights",)
