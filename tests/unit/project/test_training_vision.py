"""The generators still draw and ask, seed for seed, what `cairn-demo-vision` was trained and evaluated on.

The digests were recorded from the scripts that trained it, over the material of tests/support/mlx/demo_chats.py. What
Pillow makes of a scene depends on its version and on the fonts, so no pixel is compared.
"""

import hashlib
import json
from dataclasses import asdict

from adapters.huggingface.model_folder import SEER_ID, embedded_folder
from tests.support.mlx.demo_chats import material
from training.tasks import Draw
from training.vision.conversation import NUM_IMAGE_TOKENS, write_seen_conversation
from training.vision.questions import ask
from training.vision.scene import draw_scene
from training.vision.tokenizer import SeeingEncoder

_SCENES = "b3a1a116f3df518e712c04a0947002580b2cad386a1c6b58aad481c00b6b2c6d"
_QUESTIONS = "8faacf64e7346354c9831401ad559e2b5b56a23ab0d3903229899f3b74d469bf"
_CONVERSATIONS = "f469ebca214e16f927a0e7316c42d91634bfbe42c29ab1143b9090d4c9803385"


def _digest(values: list[object]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def test_scenes_and_answers_are_those_of_the_training_run() -> None:
    draw = Draw(5, material())
    scenes = [draw_scene(draw) for _ in range(300)]
    assert _digest([asdict(scene) for scene in scenes]) == _SCENES
    assert _digest([ask(scene, draw.random) for scene in scenes for _ in range(10)]) == _QUESTIONS


def test_conversations_are_those_of_the_training_run() -> None:
    folder = embedded_folder(SEER_ID)
    assert folder is not None
    encoder = SeeingEncoder(folder)
    written = list[object]()
    for seed in range(40):
        draw = Draw(seed, material())
        scenes = [draw_scene(draw) for _ in range(20)]
        made = write_seen_conversation(draw, scenes, 1024, encoder, encoder.image_id)
        assert made.ids.count(encoder.image_id) == NUM_IMAGE_TOKENS * len(made.shown)
        written.append([made.ids, made.is_learned, made.answers, made.shown])
    assert _digest(written) == _CONVERSATIONS
