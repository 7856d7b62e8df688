"""The messages between the server and a worker. Each is a frame of its length in four bytes and MessagePack.

    server                               worker
    Ask                           ──►
                                  ◄──    WorkerReply, then the bytes of its arrays, one after the other

The server trusts no answer: a file may have taken its worker over. Types and lengths are checked before memory is
taken.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TypeVar

import msgspec

from application.ports.file_reader import MAX_TEXT_CHARS
from application.ports.vision import ImageTokens, PreparedArray, PreparedImage, ProcessedImage
from domain.id_row import IdRow
from domain.models.model_card import ModelSource
from domain.request.media import Detail

MAX_ARRAY_BYTES = 512 << 20
"""The most bytes of an image's arrays. The largest image of a Qwen model has 308 MB."""

MAX_REPLY_BYTES = 4 * MAX_TEXT_CHARS + (1 << 20)
"""The most bytes of an answer without arrays: tokens, in most cases a few kilobytes, or the text of a file."""

_LENGTH = struct.Struct(">I")

T = TypeVar("T")


class BrokenReply(Exception):
    """The worker's bytes are no answer, or it has ended."""


class Ask(msgspec.Struct, array_like=True, frozen=True):
    """A file to process; to load a processor only, where `data` is None. `number`: of the processor. `source`: None for
    a PDF file, whose text is read."""

    number: int
    source: ModelSource | None
    data: bytes | None = None
    detail: Detail = Detail.AUTO


class Tokens(msgspec.Struct, array_like=True, frozen=True):
    """An ImageTokens, and how its arrays follow: names, numpy's names of types, and shapes."""

    token_ids: bytes
    digest: bytes
    embedded: tuple[tuple[int, int], ...]
    grid: tuple[int, int, int] | None
    num_features: int
    arrays: tuple[tuple[str, str, tuple[int, ...], int], ...]


class WorkerReply(msgspec.Struct, array_like=True, frozen=True):
    """`why`: of a failure, or of a refusal of the file, in place of a result. `placeholder`: of a processor.
    `pages`: of a PDF file."""

    why: str = ""
    is_refused: bool = False
    placeholder: str = ""
    tokens: Tokens | None = None
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """An answer with its image."""

    answer: WorkerReply
    image: ProcessedImage | None


def write(stream: IO[bytes], message: Ask | WorkerReply, arrays: Mapping[str, PreparedArray] | None = None) -> None:
    payload = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(payload)))
    stream.write(payload)
    for array in (arrays or {}).values():
        stream.write(array.data)
    stream.flush()


def write_image(stream: IO[bytes], image: ProcessedImage) -> None:
    tokens, arrays = image.tokens, image.prepared.arrays
    shapes = tuple([(name, array.dtype, array.shape, len(array.data)) for name, array in arrays.items()])
    found = Tokens(
        tokens.token_ids.to_bytes(), tokens.digest, tokens.embedded, tokens.grid, image.prepared.num_features, shapes
    )
    write(stream, WorkerReply(tokens=found), arrays)


def read(stream: IO[bytes], kind: type[T], max_bytes: int) -> T | None:
    """Returns the next message; None at the end. Raises BrokenReply."""
    if not (head := stream.read(_LENGTH.size)):
        return None
    (length,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (max_bytes + 1,)
    if length > max_bytes:
        raise BrokenReply(f"a message of {length} bytes")
    try:
        return msgspec.msgpack.decode(_exactly(stream, length), type=kind)
    except msgspec.MsgspecError as error:
        raise BrokenReply(str(error)) from error


def read_reply(stream: IO[bytes]) -> Found:
    """Returns the answer of a worker. Raises BrokenReply."""
    answer = read(stream, WorkerReply, MAX_REPLY_BYTES)
    if answer is None:
        raise BrokenReply("nothing")
    if (sent := answer.tokens) is None:
        return Found(answer, None)
    if sum(length for *_, length in sent.arrays) > MAX_ARRAY_BYTES or any(length < 0 for *_, length in sent.arrays):
        raise BrokenReply("arrays of too many bytes")
    arrays = {name: PreparedArray(dtype, shape, _exactly(stream, length)) for name, dtype, shape, length in sent.arrays}
    tokens = ImageTokens(IdRow.of_bytes(sent.token_ids), sent.digest, sent.embedded, sent.grid)
    return Found(answer, ProcessedImage(tokens, PreparedImage(arrays, sent.num_features)))


def _exactly(stream: IO[bytes], length: int) -> bytes:
    found = stream.read(length)
    if len(found) != length:
        raise BrokenReply("its end is missing")
    return found
