"""The codec: whatever goes in comes out bit for bit, and what it did not write is refused without harm."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import CodecError, EncodedPayload
from domain.prefix.record import ITEM_BYTES, HostPayload, StatePayload, TensorSpec
from tests.support.effort import drawn

CODECS = {"zstd": ZstdStateCodec(), "raw": ZstdStateCodec(compress=False)}
# Patterns that trouble anything which looks at values: signalling and quiet NaNs with payloads, infinities, denormals,
# negative zero; as 16-bit words, which are the upper half of the same things in float32.
SPECIAL_WORDS = np.array(
    [0x7F81, 0x7FC1, 0xFFA5, 0x7F80, 0xFF80, 0x0001, 0x8001, 0x007F, 0x8000, 0x0000, 0x7C01, 0xFC00, 0x03FF], np.uint16
)


def content(kind: str, size_bytes: int, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    words = -(-size_bytes // 2)
    if kind == "random":
        data = random.integers(0, 1 << 16, words, np.uint16)
    elif kind == "special":
        data = random.choice(SPECIAL_WORDS, words)
    elif kind == "normal":
        data = (random.standard_normal(words, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        data = np.full(words, seed % 3, np.uint16)
    return data.tobytes()[:size_bytes]


shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple) | st.sampled_from(
    [(1, 2, 700, 8), (40_000,), (0, 64), (3, 0)]
)


@st.composite
def payloads(draw: st.DrawFn) -> HostPayload:
    specs = tuple(
        TensorSpec(draw(st.sampled_from(sorted(ITEM_BYTES))), draw(shapes)) for _ in range(draw(st.integers(0, 5)))
    )
    kinds = st.sampled_from(["random", "special", "normal", "constant"])
    data = (content(draw(kinds), spec.size_bytes, draw(st.integers(0, 1000))) for spec in specs)
    return HostPayload(specs, tuple(memoryview(part).toreadonly() for part in data))


def assert_same(found: StatePayload, payload: HostPayload) -> None:
    assert found.specs == payload.specs
    assert [bytes(view) for view in found.buffers()] == [bytes(view) for view in payload.buffers()]
    assert all(view.readonly and view.format == "B" and view.contiguous for view in found.buffers())


@pytest.mark.parametrize("name", CODECS)
@given(payload=payloads())
@settings(max_examples=drawn(150), deadline=None)
def test_every_payload_comes_back(name: str, payload: HostPayload) -> None:
    frame = b"".join(CODECS[name].encode(payload))
    for codec in CODECS.values():
        assert_same(codec.decode(memoryview(frame)), payload)


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
@pytest.mark.parametrize("kind", ["random", "special", "normal", "constant"])
def test_large_tensors_of_every_dtype_come_back(dtype: str, kind: str) -> None:
    spec = TensorSpec(dtype, (3, 100_003))
    payload = HostPayload((spec,), (memoryview(content(kind, spec.size_bytes, 5)),))
    frame = memoryview(b"".join(CODECS["zstd"].encode(payload)))
    assert_same(CODECS["zstd"].decode(frame), payload)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "uint8"])
def test_many_large_tensors_come_back(dtype: str) -> None:
    """More than lie together in memory, and chunks that end within a tensor."""
    spec = TensorSpec(dtype, (3, 1_000_003))
    payload = HostPayload((spec,) * 3, tuple(memoryview(content("normal", spec.size_bytes, n)) for n in range(3)))
    assert_same(CODECS["zstd"].decode(memoryview(b"".join(CODECS["zstd"].encode(payload)))), payload)


@pytest.mark.parametrize(("dtype", "limit"), [("bfloat16", 0.69), ("float32", 0.87)])
def test_normal_numbers_shrink_to_near_their_entropy(dtype: str, limit: float) -> None:
    random = np.random.default_rng(3)
    numbers = random.standard_normal(1 << 20, np.float32)
    bits = numbers.view(np.uint32) if dtype == "float32" else (numbers.view(np.uint32) >> 16).astype(np.uint16)
    view = memoryview(bits.tobytes())
    payload = HostPayload((TensorSpec(dtype, (1 << 20,)),), (view,))
    stored = sum(part.nbytes for part in CODECS["zstd"].encode(payload))
    assert stored <= limit * payload.size_bytes


def test_what_does_not_shrink_is_stored_raw() -> None:
    data = np.random.default_rng(1).bytes(1 << 20)
    payload = HostPayload((TensorSpec("uint8", (1 << 20,)),), (memoryview(data),))
    assert sum(part.nbytes for part in CODECS["zstd"].encode(payload)) < (1 << 20) + 64


@given(payload=payloads(), data=st.data())
@settings(max_examples=drawn(150), deadline=None)
def test_damaged_frames_are_refused_or_decode_to_something_of_their_size(
    payload: HostPayload, data: st.DataObject
) -> None:
    frame = bytearray(b"".join(CODECS["zstd"].encode(payload)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    del frame[data.draw(st.integers(0, len(frame)) | st.just(len(frame))) :]
    try:
        found = CODECS["zstd"].decode(memoryview(bytes(frame)))
    except CodecError:
        return
    for spec, view in zip(found.specs, found.buffers(), strict=True):
        assert view.nbytes == spec.size_bytes == prod(spec.shape) * ITEM_BYTES[spec.dtype]


@given(noise=st.binary(max_size=200))
@settings(max_examples=drawn(200), deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CodecError):
        CODECS["zstd"].decode(memoryview(noise))


def test_a_wrong_size_is_refused_before_it_is_stored() -> None:
    with pytest.raises(CodecError):
        CODECS["zstd"].encode(HostPayload((TensorSpec("float32", (4,)),), (memoryview(b"123"),)))


def test_the_result_does_not_refer_to_the_frame() -> None:
    payload = HostPayload((TensorSpec("uint8", (5000,)),), (memoryview(bytes(range(250)) * 20),))
    frame = bytearray(b"".join(CODECS["raw"].encode(payload)))
    found = CODECS["raw"].decode(memoryview(frame))
    frame[:] = bytes(len(frame))
    assert_same(found, payload)


def test_what_arrived_encoded_is_kept_as_it_is() -> None:
    spec = TensorSpec("bfloat16", (40_000,))
    payload = HostPayload((spec,), (memoryview(content("normal", spec.size_bytes, 1)),))
    frame = memoryview(b"".join(CODECS["zstd"].encode(payload)))
    arrived = EncodedPayload(payload.specs, frame, CODECS["zstd"].decode)
    assert CODECS["zstd"].encode(arrived) == [frame]
    assert arrived.size_bytes == payload.size_bytes
    assert arrived.buffers()[0] == payload.data[0]
