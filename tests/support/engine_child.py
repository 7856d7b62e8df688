"""The entry of a child process that hosts the toy engine of the engine port's contract."""

import os
import sys
from collections.abc import Callable

from adapters.engine_process.host import Hosted, serve_parent
from application.ports.model_repository import ModelPreview
from domain.errors import ModelLoadFailed
from domain.model_card import LoadOptions, ModelSource
from tests.support.engine_client import BROKEN, engine_on_a_thread


def check(source: ModelSource, _options: LoadOptions) -> ModelPreview:
    if source.id == BROKEN:
        raise ModelLoadFailed("its header is broken", param="model")
    return ModelPreview(weight_bytes=7)


def make(settings: bytes, hold: Callable[[], None]) -> Hosted:
    if settings == b"broken":
        raise ValueError("planted")
    return Hosted(engine_on_a_thread(hold), check)


if __name__ == "__main__":
    os._exit(serve_parent(int(sys.argv[1]), make))
