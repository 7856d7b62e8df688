"""Frames, values and prompts of an engine's process: what was sent is what arrives, however it is cut up."""

import pytest
from msgspec import MsgspecError

from adapters.engine_process.channel import MAX_FRAME_BYTES, BrokenStream, Deframer, framed
from adapters.engine_process.messages import Submit, ToChild, decoded, encoded
from application.ports.engine import EngineError
from domain.errors import InvalidRequest, MemoryBusy, ModelExceedsMemory, StoreUnresponsive
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.prefix.prompt_content import EncodedPrompt
from tests.support.engines.sync_engine import submission

PAYLOADS = [b"", b"one", b"x" * 300, b"\x00" * 7]


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
def test_frames_come_out_as_they_went_in_however_they_are_cut(size: int) -> None:
    data = b"".join(map(framed, PAYLOADS))
    frames, found = Deframer(), list[bytes]()
    for start in range(0, len(data), size):
        found += frames.feed(data[start : start + size])
    assert found == PAYLOADS


def test_a_length_that_no_message_has_is_refused_before_anything_is_held() -> None:
    with pytest.raises(BrokenStream, match="announced"):
        Deframer().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def sent(prompt: EncodedPrompt) -> EncodedPrompt:
    message = decoded(encoded(Submit(submission("a", ModelId("toy"), prompt, 4))), ToChild)
    assert isinstance(message, Submit)
    return message.submission.prompt


def test_a_row_that_is_no_whole_number_of_ids_is_no_message() -> None:
    whole = encoded(Submit(submission("a", ModelId("toy"), EncodedPrompt.of_text((1, 2)), 4)))
    row = IdRow((1, 2)).to_bytes()
    cut = whole.replace(b"\xc4\x08" + row, b"\xc4\x07" + row[:7])
    assert len(cut) == len(whole) - 1
    with pytest.raises(MsgspecError):
        decoded(cut, ToChild)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no", param="seed"),
        StoreUnresponsive("slow"),
        MemoryBusy("full", retry_after_s=7),
        ModelExceedsMemory("large", needed_bytes=5, limit_bytes=3),
    ],
)
def test_an_error_keeps_its_class_and_numbers(error: InvalidRequest) -> None:
    found = decoded(encoded(EngineError.of(error)), EngineError).to_error()
    assert (type(found), found.message, vars(found)) == (type(error), error.message, vars(error))
