"""`cairn-demo-vision` gets from Cairn what the processor of transformers makes, and gives the logits of mlx-vlm."""

import json
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
import transformers
from PIL import Image as PillowImage

from adapters.huggingface.model_folder import SEER_ID, embedded_folder, read_config
from adapters.image_processors.processor import HfImageProcessor, ImageProcessors
from adapters.mlx.batch import Row
from adapters.mlx.caches.leaves import new_caches
from adapters.mlx.loading.network import load_folder
from adapters.mlx.loading.sight import load_sight
from adapters.mlx.loading.weights_digest import Digests
from adapters.mlx.speculation.drafting import forward
from adapters.mlx.vision.library import vlm_module
from adapters.mlx.vision.passes import chunk_pass
from adapters.pillow.decoder import decode
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.vision import ImageRows, PreparedImage
from domain.ids import SequenceId
from domain.models.capability import ModelUse
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.chat import ChatMessage, Role
from domain.request.media import Image
from domain.request.request import ChatPrompt
from tests.support.arrays import opened
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.drawn_pictures import SHAPES, Drawn, drawing
from tests.support.mlx.tiny_seers import SEES

pytest.importorskip("mlx_vlm")

TOLERANCE = 2e-5
WIDE = BytesIO()
PillowImage.open(BytesIO(drawing(Drawn("triangle", "purple", 90, 100, 40)))).resize((500, 131)).save(WIDE, "PNG")
FILES = (SHAPES, WIDE.getvalue())
QUESTION = "What color is the square in the first image?"


@dataclass
class Asked:
    """A question about two images, as Cairn's text side and token side see it."""

    folder: Path
    encoded: EncodedPrompt
    prepared: list[PreparedImage]


@pytest.fixture(scope="module")
def asked() -> Asked:
    folder = embedded_folder(SEER_ID)
    assert folder is not None
    source = ModelSource(SEER_ID, str(folder), use=ModelUse(SEES))
    processor = ImageProcessors(decode).load(source)
    assert isinstance(processor, HfImageProcessor)
    images = [Image(data) for data in FILES]
    message = ChatMessage(Role.USER, QUESTION, images=tuple(images))
    rows = ImageRows(processor.placeholder, {image.digest: processor.process(image).tokens for image in images})
    encoded = HfTokenizerLoader().load(source).render(ChatPrompt((message,)), images=rows)
    return Asked(folder, encoded, [processor.process(image).prepared for image in images])


def test_prompt_and_pixels_are_those_of_the_processor_of_transformers(asked: Asked) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.folder)
    resizing = transformers.AutoImageProcessor.from_pretrained(asked.folder, backend="pil")
    settings = json.loads((asked.folder / "processor_config.json").read_text())
    count = settings["image_seq_len"]
    processor = transformers.Idefics3Processor(resizing, tokenizer, count)  # AutoProcessor may be replaced by mlx-vlm
    parts = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": parts}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    pictures = [PillowImage.open(BytesIO(data)) for data in FILES]
    expected = processor(text=[text], images=[pictures], return_tensors="np")

    assert list(asked.encoded.token_ids) == expected["input_ids"][0].tolist()
    ours = np.concatenate([opened(image)["pixel_values"] for image in asked.prepared], axis=1)
    assert np.array_equal(ours, expected["pixel_values"])


@pytest.mark.exact
def test_logits_equal_those_of_mlx_vlm(asked: Asked) -> None:
    network, facts = finish_load(load_folder(asked.folder, LoadOptions(dtype="float32"), Digests(b"seer")))
    sight = finish_load(load_sight(asked.folder, facts.config, network, "float32"))
    media = asked.encoded.media
    images = {span.digest: sight.look(image) for span, image in zip(media, asked.prepared, strict=True)}
    row = Row(SequenceId(0), new_caches(network), media=media)
    ids = mx.array([list(asked.encoded.token_ids)])

    found = forward(network, *chunk_pass(network, sight.family, ids, row, images))[0]

    pixels = mx.array(np.concatenate([opened(image)["pixel_values"] for image in asked.prepared], axis=1))
    expected = peer(asked.folder)(ids, pixels).logits[0]
    assert float(mx.max(mx.abs(expected)).item()) > 1
    assert float(mx.max(mx.abs(found - expected)).item()) <= TOLERANCE


def peer(folder: Path) -> Any:
    """mlx-vlm's own network, which wants a matrix of its own for the output."""
    family = vlm_module("models.idefics3")
    config = dict(read_config(folder))
    known = family.ModelConfig.from_dict(config)
    known.text_config = family.TextConfig.from_dict(config["text_config"])
    known.vision_config = family.VisionConfig.from_dict(config["vision_config"])
    network = family.Model(known)
    weights = cast("dict[str, mx.array]", mx.load(str(folder / "model.safetensors")))
    weights["lm_head.weight"] = weights["model.text_model.embed_tokens.weight"]
    for part in (network, family.VisionModel(known.vision_config), family.LanguageModel(known.text_config)):
        weights = part.sanitize(weights) if hasattr(part, "sanitize") else weights
    network.load_weights([(name, array.astype(mx.float32)) for name, array in weights.items()])
    network.eval()
    return network
