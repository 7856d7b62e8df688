"""The public test kit: a deterministic toy engine, tokenizer, model repository, clock and ids. Nothing but Python.

from adapters.fake import FakeEngine, FakeOptions, FakeTokenizer, HYBRID, reply_with
"""

from adapters.fake.clock import FakeClock
from adapters.fake.engine import FakeEngine
from adapters.fake.ids import FakeIds
from adapters.fake.model import FakeModel
from adapters.fake.models import FakeModels
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
    "reply_with",
    "windowed",
)
