"""The chat tokenizer with the image tokens, and its chat template with images."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from training.text.encoder import Encoder
from training.vision.conversation import IMAGE, SPECIAL

_TEXT_PART = "{%- if part.text is defined %}{%- set ns.t = ns.t + part.text %}{%- endif %}"
_ANY_PART = (
    "{%- if part.type == 'image' or part.type == 'image_url' %}{%- set ns.t = ns.t + '"
    + IMAGE
    + "' %}{%- elif part.text is defined %}{%- set ns.t = ns.t + part.text %}{%- endif %}"
)


def write_tokenizer(source: Path, folder: Path, image_side: int) -> None:
    """The files of a tokenizer and an Idefics3 processor, from those of the chat tokenizer."""
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (source / "chat_template.jinja").read_text(encoding="utf-8")
    assert _TEXT_PART in template
    template = template.replace(_TEXT_PART, _ANY_PART)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"model_max_length": 2048, "chat_template": template, "processor_class": "Idefics3Processor"}
    side = {"longest_edge": image_side}
    files = {
        "tokenizer_config.json": settings,
        "processor_config.json": {"processor_class": "Idefics3Processor", "image_seq_len": 64},
        "preprocessor_config.json": {
            "image_processor_type": "Idefics3ImageProcessor",
            "processor_class": "Idefics3Processor",
            "do_convert_rgb": True,
            "do_image_splitting": False,
            "do_resize": True,
            "do_rescale": True,
            "do_normalize": True,
            "do_pad": True,
            "size": side,
            "max_image_size": side,
            "resample": 3,
            "rescale_factor": 1 / 255,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        },
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value, indent=1), encoding="utf-8")


class SeeingEncoder(Encoder):
    """Encodes texts with image tokens; one process."""

    def __init__(self, folder: Path) -> None:
        file = folder / "tokenizer.json"
        super().__init__(file)
        self.image_id: int = Tokenizer.from_file(str(file)).token_to_id(IMAGE)


__all__ = ("SeeingEncoder", "write_tokenizer")
