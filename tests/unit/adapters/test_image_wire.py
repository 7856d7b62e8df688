"""Messages between the server and a worker that decodes images: whole, damaged, or of too many bytes."""

import struct
from io import BytesIO

import msgspec
import pytest

from adapters.fake.vision import ToyImages, toy_image
from adapters.image_process.wire import (
    MAX_ARRAY_BYTES,
    MAX_REPLY_BYTES,
    BrokenReply,
    Tokens,
    WorkerReply,
    read_reply,
    write,
    write_image,
)

IMAGE = ToyImages().process(toy_image(3, 4, "cat"))


def written() -> bytes:
    stream = BytesIO()
    write_image(stream, IMAGE)
    return stream.getvalue()


def test_an_image_is_read_as_it_was_written() -> None:
    assert read_reply(BytesIO(written())).image == IMAGE


def test_an_answer_that_ends_early_is_broken() -> None:
    for length in range(len(written())):
        with pytest.raises(BrokenReply):
            read_reply(BytesIO(written()[:length]))


def told(*lengths: int) -> bytes:
    stream = BytesIO()
    arrays = tuple([(f"{at}", "uint8", (length,), length) for at, length in enumerate(lengths)])
    write(stream, WorkerReply(tokens=Tokens(b"", b"", (), None, 0, arrays)))
    return stream.getvalue()


@pytest.mark.parametrize("lengths", [(MAX_ARRAY_BYTES + 1,), (MAX_ARRAY_BYTES, 1), (-1, 5), (2**40, -(2**40))])
def test_arrays_of_too_many_bytes_are_not_read(lengths: tuple[int, ...]) -> None:
    with pytest.raises(BrokenReply, match="too many bytes"):
        read_reply(BytesIO(told(*lengths)))


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", MAX_REPLY_BYTES + 1),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">I", 12) + msgspec.msgpack.encode(["", False, "", 5]),
    ],
)
def test_bytes_that_are_no_answer_are_broken(data: bytes) -> None:
    with pytest.raises(BrokenReply):
        read_reply(BytesIO(data))
