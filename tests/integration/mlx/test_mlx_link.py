"""Capture and restore where bytes cross by a link of their own, as on an NVIDIA GPU, change no bit either."""

import ctypes
from collections.abc import Sequence

import mlx.core as mx
import pytest

from adapters.mlx.state import payload
from adapters.mlx.state import restore as state_restore
from adapters.mlx.state.payload import upload
from tests.support.mlx.fake_driver import host_address
from tests.support.mlx.tiny_models import names, tiny_model
from tests.support.stores.state_replay import (
    Captured,
    capture,
    continue_greedy,
    open_at,
    prompt_of,
    state_bytes,
    whole_state,
)

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
    """A CudaLink whose device is host memory: a write reaches an array's own bytes, and a download knows an address."""

    def __init__(self) -> None:
        self.num_written = 0

    def address_of(self, array: mx.array) -> mx.array:
        return host_address(array.view(mx.uint8))

    def write(self, targets: Sequence[tuple[mx.array, Sequence[memoryview]]]) -> None:
        for array, parts in targets:
            data = b"".join(parts)
            assert len(data) == array.nbytes
            ctypes.memmove(int(self.address_of(array).item()), data, len(data))
            self.num_written += 1

    def download(self, address: mx.array, size_bytes: int) -> memoryview:
        return memoryview(ctypes.string_at(int(address.item()), size_bytes))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> HostLink:
    """As on an NVIDIA GPU: pieces are joined on the device."""
    found = HostLink()
    monkeypatch.setattr(payload, "find_link", lambda: found)
    monkeypatch.setattr(payload, "PIECE_BYTES", 5_000)
    monkeypatch.setattr(state_restore, "on_cpu", lambda: False)
    return found


CASES = [
    *((name, mx.float32) for name in FAMILIES if name in names()),
    ("llama", mx.bfloat16),
    ("gemma3_text", mx.bfloat16),
]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda one: str(one).rpartition(".")[2])
def test_restoring_over_a_link_changes_no_bit(name: str, dtype: mx.Dtype, link: HostLink) -> None:
    """From captured state, from bytes of the host, and from what was uploaded before."""
    model = tiny_model(name, dtype)
    cold = open_at(model, PROMPT)
    expected = whole_state(model, cold)
    output = continue_greedy(model, cold, PROMPT, 6)
    captured = capture(model, PROMPT, AT_GRID)
    assert not link.num_written
    on_host = captured.on_host()
    blocks = [dict(zip(block, upload(list(block.values())), strict=True)) for block in on_host.blocks]
    snapshot = dict(zip(on_host.snapshot, upload(list(on_host.snapshot.values())), strict=True))
    assert [state_bytes(block) for block in blocks] == [state_bytes(block) for block in on_host.blocks]
    num_uploaded = link.num_written
    for source in (captured, Captured(AT_GRID, blocks, snapshot), on_host):
        assert (link.num_written == num_uploaded) == (num_uploaded > 0), "restoring is the device's own work"
        restored = open_at(model, PROMPT, source)
        assert whole_state(model, restored) == expected
        assert continue_greedy(model, restored, PROMPT, 6) == output
    assert link.num_written > num_uploaded
