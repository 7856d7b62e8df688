"""`cairn-demo-vision` gets from Cairn what the processor of transformers makes."""

import json
from io import BytesIO

import numpy as np
import pytest
import transformers
from PIL import Image as PillowImage

from adapters.huggingface.model_folder import SEER_ID, embedded_folder
from adapters.image_processors.processor import HfImageProcessor, ImageProcessors
from adapters.pillow.decoder import decode
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.vision import ImageRows
from domain.models.capability import ModelUse
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, Role
from domain.request.media import Image
from domain.request.request import ChatPrompt
from tests.support.arrays import opened
from tests.support.mlx.vision.drawn_pictures import SHAPES, Drawn, drawing
from tests.support.mlx.vision.tiny_seers import SEES

pytest.importorskip("mlx_vlm")
WIDE = BytesIO()
PillowImage.open(BytesIO(drawing(Drawn("triangle", "purple", 90, 100, 40)))).resize((500, 131)).save(WIDE, "PNG")
FILES = (SHAPES, WIDE.getvalue())
QUESTION = "What color is the square in the first image?"


def test_prompt_and_pixels_are_those_of_the_processor_of_transformers() -> None:
    folder = embedded_folder(SEER_ID)
    assert folder is not None
    source = ModelSource(SEER_ID, str(folder), use=ModelUse(SEES))
    processor = ImageProcessors(decode).load(source)
    assert isinstance(processor, HfImageProcessor)
    images = [Image(data) for data in FILES]
    message = ChatMessage(Role.USER, QUESTION, media=tuple(images))
    rows = ImageRows(processor.placeholder, {image.digest: processor.process(image).tokens for image in images})
    encoded = HfTokenizerLoader().load(source).render(ChatPrompt((message,)), images=rows)

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    resizing = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    count = json.loads((folder / "processor_config.json").read_text())["image_seq_len"]
    theirs = transformers.Idefics3Processor(resizing, tokenizer, count)  # AutoProcessor may be replaced by mlx-vlm
    parts = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": parts}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    pictures = [PillowImage.open(BytesIO(data)) for data in FILES]
    expected = theirs(text=[text], images=[pictures], return_tensors="np")

    assert list(encoded.token_ids) == expected["input_ids"][0].tolist()
    ours = np.concatenate([opened(processor.process(image).prepared)["pixel_values"] for image in images], axis=1)
    assert np.array_equal(ours, expected["pixel_values"])
