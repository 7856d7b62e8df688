"""Loads the image processor of a model folder."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from adapters.image_processors.layouts import LAYOUTS, Settings
from adapters.image_processors.processor import HfImageProcessor
from application.ports.vision import DecodeImage, ImageProcessor
from domain.errors import ModelLoadFailed
from domain.models.capability import Capability
from domain.models.model_card import ModelSource

_TRIED = (512, 512)


class ImageProcessors:
    """An ImageProcessorLoader for folders in Hugging Face format. No code of a folder is run."""

    def __init__(self, decode: DecodeImage) -> None:
        self._decode = decode

    def load(self, source: ModelSource) -> ImageProcessor | None:
        if Capability.SEE not in source.use.capabilities:
            return None
        folder = Path(source.path)
        try:
            config = cast("dict[str, Any]", json.loads((folder / "config.json").read_text(encoding="utf-8")))
            processor = import_module("transformers").AutoImageProcessor.from_pretrained(
                str(folder), backend="pil", local_files_only=True, trust_remote_code=False
            )
            family = LAYOUTS[config["model_type"]]
            settings = Settings(processor, config, config.get("vision_config") or {})
            family.layout(settings, _TRIED, family.changes(settings, False))  # what it needs is there
        except Exception as error:
            reason = str(error).strip().partition("\n")[0][:200]
            raise ModelLoadFailed(f"the image processor of {folder} could not be loaded: {reason}") from error
        return HfImageProcessor(folder, family, settings, self._decode)
