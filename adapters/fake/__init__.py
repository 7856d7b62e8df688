"""The public test kit: a deterministic toy engine, tokenizer, model repository, clock and ids, in plain Python.

from adapters.fake import FakeEngine, FakeOptions, FakeTokenizer, HYBRID, reply_with
"""

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock, FakeIds
from adapters.fake.model import FakeModel
from adapters.fake.options import (
    ATTENTION,
    COMPOSITE_PAIRS,
    EOS_ID,
    EVERYTHING,
    HYBRID,
    LAYOUTS,
    RECURRENT_ONLY,
    UNSUPPORTED,
    WINDOWED,
    FakeOptions,
    reply_with,
    windowed,
)
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from adapters.fake.vision import ToyImages, toy_image

__all__ = (
    "ATTENTION",
    "COMPOSITE_PAIRS",
    "EOS_ID",
    "EVERYTHING",
    "HYBRID",
    "LAYOUTS",
    "RECURRENT_ONLY",
    "UNSUPPORTED",
    "WINDOWED",
    "FakeClock",
    "FakeEngine",
    "FakeIds",
    "FakeModel",
    "FakeModels",
    "FakeOptions",
    "FakeTokenizer",
    "FakeTokenizers",
    "ToyImages",
    "reply_with",
    "toy_image",
    "windowed",
)
