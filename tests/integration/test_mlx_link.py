"""Capture and restore where bytes cross by a link of their own, as on an NVIDIA GPU, change no bit either."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from adapters.mlx import payload, state_restore, upload
from adapters.mlx.arrays import byte_view, evaluate
from adapters.mlx.payload import DevicePayload
from adapters.zstd.codec import ZstdStateCodec
from domain.payload import GroupPayloads, HostPayload, SplitPayload, StatePayload, TensorSpec
from tests.support.state_replay import Captured, capture, continue_greedy, open_at, prompt_of, whole_state
from tests.support.tiny_models import names, tiny_model

FAMILIES = {
    "llama": "full attention",
    "deepseek_v3": "latents: keys and values of unequal width",
    "minimax_m3_vl": "an indexer whose values have no width",
    "gemma3_text": "rotating windows and full attention",
    "qwen3_next": "gated delta and attention",
    "longcat_flash_ngram": "token ids as a recurrent state",
}
PROMPT = prompt_of(151)
AT_GRID = 96


class HostLink:
    """What `CudaLink` does, in host memory: an upload may only be evaluated once all are settled, and a download only
    knows an address."""

    def __init__(self) -> None:
        self.uploaded: list[int] = []
        self.num_settled = 0
        self._packs: list[mx.array] = []

    def upload(self, pieces: Sequence[np.ndarray[Any, Any]], axis: int, dtype: mx.Dtype) -> mx.array:
        assert sum(piece.nbytes for piece in pieces) <= state_restore.HALF_BYTES
        joined = np.concatenate(pieces, axis=axis)
        self.uploaded.append(joined.nbytes)
        return mx.array(joined).view(dtype) if joined.size else mx.zeros(joined.shape, dtype)

    def settle(self) -> None:
        self.num_settled = len(self.uploaded)

    def address_of(self, array: mx.array) -> mx.array:
        self._packs.append(array)
        return mx.array([len(self._packs) - 1], dtype=mx.uint64)

    def download(self, address: mx.array, size_bytes: int) -> memoryview:
        data = bytes(byte_view(self._packs[int(address.item())]))
        assert len(data) == size_bytes
        return memoryview(data)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> HostLink:
    found = HostLink()
    for module in (payload, state_restore, upload):
        monkeypatch.setattr(module, "find_link", lambda: found)
    for module in (state_restore, upload):
        monkeypatch.setattr(module, "HALF_BYTES", 10_000)
    monkeypatch.setattr(upload, "PACK_BYTES", 5_000)
    return found


def read_back(groups: GroupPayloads) -> GroupPayloads:
    """As a store gives it to a device that merges planes itself."""
    codec = ZstdStateCodec(keeps_planes=True)
    return {index: codec.decode(codec.encode(payload)) for index, payload in groups.items()}


def uploaded(groups: GroupPayloads) -> GroupPayloads:
    return dict(zip(groups, upload.upload(list(groups.values())), strict=True))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name in names()])
def test_restoring_over_a_link_changes_no_bit(name: str, link: HostLink) -> None:
    model = tiny_model(name)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    output = continue_greedy(model, cold, PROMPT, 6)
    captured = capture(model, PROMPT, AT_GRID)
    assert not link.uploaded
    for source in (captured.on_host(), captured):
        restored = open_at(model, PROMPT, source)
        assert whole_state(model, restored) == expected
        assert continue_greedy(model, restored, PROMPT, 6) == output
    assert link.uploaded
    assert link.num_settled == len(link.uploaded)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("llama", mx.bfloat16), ("gemma3_text", mx.bfloat16), ("deepseek_v3", mx.float32), ("qwen3_next", mx.float32)],
    ids=lambda one: str(one).rpartition(".")[2],
)
def test_what_was_uploaded_read_by_read_is_the_state(
    name: str, dtype: mx.Dtype, link: HostLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_restore, "on_cpu", lambda: False)
    model = tiny_model(name, dtype)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    captured = capture(model, PROMPT, AT_GRID).on_host()
    blocks, snapshot = [read_back(block) for block in captured.blocks], read_back(captured.snapshot)
    read = [*(one for block in blocks for one in block.values()), *snapshot.values()]
    assert any(isinstance(one, SplitPayload) for one in read) == (dtype == mx.bfloat16)
    there = Captured(AT_GRID, [uploaded(block) for block in blocks], uploaded(snapshot))
    assert all(isinstance(one, DevicePayload) for block in there.blocks for one in block.values())
    num_crossed = len(link.uploaded)
    assert link.num_settled == num_crossed > 0
    assert whole_state(model, open_at(model, PROMPT, there)) == expected
    assert len(link.uploaded) == num_crossed  # restoring is the device's own work then


def test_every_number_is_merged_from_its_planes() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    split = _split(words, (TensorSpec("bfloat16", (1, 1, 256, 256)),))
    exponent, rest = (mx.array(np.frombuffer(plane, np.uint8)) for plane in (split.exponent, split.rest))
    merged = upload.merged_bfloat16(exponent, rest)
    evaluate([merged])
    assert bytes(byte_view(merged)) == words.tobytes() == bytes(split.buffers()[0])


def test_tensors_of_several_shapes_cross_as_large_as_fits(link: HostLink) -> None:
    """Nine that fit together by twos, three with no bytes, and one that is too large for the link."""
    specs = (
        *[TensorSpec("bfloat16", (1, 2, 10, 50))] * 9,
        *[TensorSpec("bfloat16", (1, 2, 10, 0))] * 3,
        TensorSpec("bfloat16", (2, 2, 61, 100)),
    )
    words = np.random.default_rng(1).integers(0, 1 << 16, sum(spec.size_bytes for spec in specs) // 2, np.uint16)
    split = _split(words, specs)
    (there,) = upload.upload([split])
    assert there.specs == specs
    assert b"".join(there.buffers()) == words.tobytes()
    assert link.uploaded == [2000] * 8 + [1000] * 2
    again = upload.upload([there])
    assert again == [there]


def test_without_a_link_planes_are_merged_here() -> None:
    words = np.random.default_rng(2).integers(0, 1 << 16, 5000, np.uint16)
    plain = HostPayload((TensorSpec("uint8", (3,)),), (memoryview(b"abc"),))
    split, other = upload.upload([_split(words, (TensorSpec("bfloat16", (5, 1000)),)), plain])
    assert isinstance(split, HostPayload)
    assert bytes(split.buffers()[0]) == words.tobytes()
    assert other is plain


def _split(words: np.ndarray[Any, Any], specs: tuple[TensorSpec, ...]) -> SplitPayload:
    ends = list(accumulate(spec.size_bytes for spec in specs))
    data = memoryview(words.tobytes())
    views = tuple(data[end - spec.size_bytes : end] for end, spec in zip(ends, specs, strict=True))
    codec = ZstdStateCodec(keeps_planes=True)
    found: StatePayload = codec.decode(codec.encode(HostPayload(specs, views)))
    assert isinstance(found, SplitPayload)
    return found


def test_long_columns_cross_in_parts(link: HostLink, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many blocks at a time as fit, and what never fits crosses without the link."""
    model = tiny_model("llama")
    captured = capture(model, PROMPT, AT_GRID).on_host()
    block_bytes = next(iter(captured.blocks[0].values())).specs[0].size_bytes
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    for limit, sizes in ((2 * block_bytes, {block_bytes, 2 * block_bytes}), (block_bytes - 1, set[int]())):
        link.uploaded.clear()
        monkeypatch.setattr(state_restore, "HALF_BYTES", limit)
        restored = open_at(model, PROMPT, captured)
        assert set(link.uploaded) == sizes
        assert whole_state(model, restored) == expected
        model.close([restored])
    model.close([cold])
