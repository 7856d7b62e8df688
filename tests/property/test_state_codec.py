"""The codec: whatever goes in comes out bit for bit, and what it did not write is refused without harm."""

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.zstd.buffer_pool import BufferPool
from adapters.zstd.codec import ZstdStateCodec
from application.ports.state_codec import CodecError
from domain.payload import ITEM_BYTES, HostPayload, SplitPayload, StatePayload, TensorSpec
from tests.support.effort import scaled

CODECS = {"zstd": ZstdStateCodec(), "raw": ZstdStateCodec(compress=False)}
KEEPS_PLANES = ZstdStateCodec(keeps_planes=True)
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
@settings(max_examples=scaled(150), deadline=None)
def test_every_payload_comes_back(name: str, payload: HostPayload) -> None:
    frame = b"".join(CODECS[name].encode(payload))
    for codec in (*CODECS.values(), KEEPS_PLANES):
        assert_same(codec.decode([memoryview(frame)]), payload)


def cut(frame: bytes, cuts: list[int]) -> list[memoryview]:
    edges = [0, *sorted(at % (len(frame) + 1) for at in cuts), len(frame)]
    return [memoryview(frame[start:end]) for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("name", CODECS)
@given(payload=payloads(), cuts=st.lists(st.integers(0, 1 << 20), max_size=8))
@settings(max_examples=scaled(150), deadline=None)
def test_a_frame_may_be_cut_anywhere(name: str, payload: HostPayload, cuts: list[int]) -> None:
    frame = b"".join(CODECS[name].encode(payload))
    assert_same(CODECS[name].decode(cut(frame, cuts)), payload)


@pytest.mark.parametrize("size", [1, 7, 4096, 262_120])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "uint8"])
def test_a_frame_in_small_pieces_comes_back(dtype: str, size: int) -> None:
    """Numbers of several bytes, and their chunks, end up across the edges of pieces."""
    spec = TensorSpec(dtype, (3, 100_003 if size > 7 else 1003))
    payload = HostPayload((spec, spec), (memoryview(content("normal", spec.size_bytes, 6)),) * 2)
    frame = b"".join(CODECS["zstd"].encode(payload))
    assert_same(CODECS["zstd"].decode(cut(frame, list(range(0, len(frame), size)))), payload)


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
@pytest.mark.parametrize("kind", ["random", "special", "normal", "constant"])
def test_large_tensors_of_every_dtype_come_back(dtype: str, kind: str) -> None:
    spec = TensorSpec(dtype, (3, 100_003))
    payload = HostPayload((spec,), (memoryview(content(kind, spec.size_bytes, 5)),))
    frame = memoryview(b"".join(CODECS["zstd"].encode(payload)))
    assert_same(CODECS["zstd"].decode([frame]), payload)
    kept = KEEPS_PLANES.decode([frame])
    assert isinstance(kept, SplitPayload) == (dtype == "bfloat16")
    assert_same(kept, payload)


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
@settings(max_examples=scaled(150), deadline=None)
def test_damaged_frames_are_refused_or_decode_to_something_of_their_size(
    payload: HostPayload, data: st.DataObject
) -> None:
    frame = bytearray(b"".join(CODECS["zstd"].encode(payload)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    del frame[data.draw(st.integers(0, len(frame)) | st.just(len(frame))) :]
    for codec in (CODECS["zstd"], KEEPS_PLANES):
        try:
            found = codec.decode([memoryview(bytes(frame))])
        except CodecError:
            continue
        for spec, view in zip(found.specs, found.buffers(), strict=True):
            assert view.nbytes == spec.size_bytes == prod(spec.shape) * ITEM_BYTES[spec.dtype]


@given(noise=st.binary(max_size=200))
@settings(max_examples=scaled(200), deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(CodecError):
        CODECS["zstd"].decode([memoryview(noise)])


def test_a_wrong_size_is_refused_before_it_is_stored() -> None:
    with pytest.raises(CodecError):
        CODECS["zstd"].encode(HostPayload((TensorSpec("float32", (4,)),), (memoryview(b"123"),)))


def test_the_result_does_not_refer_to_the_frame() -> None:
    payload = HostPayload((TensorSpec("uint8", (5000,)),), (memoryview(bytes(range(250)) * 20),))
    frame = bytearray(b"".join(CODECS["raw"].encode(payload)))
    found = CODECS["raw"].decode([memoryview(frame)])
    frame[:] = bytes(len(frame))
    assert_same(found, payload)


def test_a_buffer_is_used_again_only_when_nobody_holds_it() -> None:
    pool = BufferPool(keep_bytes=1 << 20)
    first = pool.take(100_000)
    view = memoryview(first[10:20].data)
    address = first.ctypes.data
    del first
    second = pool.take(100_000)
    assert second.ctypes.data != address
    view.release()
    assert pool.take(99_000).ctypes.data == address


def test_the_pool_keeps_no_more_than_it_may() -> None:
    pool = BufferPool(keep_bytes=1 << 20)
    held = [pool.take(400_000) for _ in range(10)]
    assert pool.kept_bytes <= 1 << 20
    assert len({buffer.ctypes.data for buffer in held}) == 10


def test_what_is_more_than_the_pool_may_keep_costs_nothing_of_what_it_keeps() -> None:
    pool = BufferPool(keep_bytes=1 << 20)
    address = pool.take(400_000).ctypes.data
    assert pool.take(2 << 20).size == 2 << 20
    assert pool.kept_bytes == 400_000
    assert pool.take(400_000).ctypes.data == address


def test_how_much_the_pool_keeps_may_change() -> None:
    pool = BufferPool(keep_bytes=1 << 20)
    burst = [pool.take(400_000) for _ in range(4)]
    assert pool.kept_bytes == 800_000
    pool.keep_at_most(4 << 20)
    burst += [pool.take(400_000) for _ in range(4)]
    assert pool.kept_bytes == 6 * 400_000
    pool.keep_at_most(1 << 20)
    assert pool.kept_bytes <= 1 << 20


def test_a_free_buffer_that_nobody_wants_any_more_goes() -> None:
    pool = BufferPool(keep_takes=3)
    burst = [pool.take(100_000) for _ in range(8)]
    assert pool.kept_bytes == 800_000
    del burst
    for _ in range(3):
        pool.take(500_000)
    assert pool.kept_bytes == 500_000


def test_when_memory_is_short_only_what_somebody_reads_is_kept() -> None:
    pool = BufferPool()
    burst = [pool.take(100_000) for _ in range(8)]
    read = memoryview(burst[3].data)
    address = burst[3].ctypes.data
    del burst
    pool.give_back()
    assert pool.kept_bytes == 100_000
    read.release()
    assert pool.take(100_000).ctypes.data == address
