"""How fast this machine decodes state, measured on a few megabytes that look like it."""

from time import perf_counter

import numpy as np

from adapters.zstd.codec import ZstdStateCodec
from domain.payload import HostPayload, TensorSpec

_NUM_TENSORS = 8
_SHAPE = (1, 8, 256, 128)
_ROUNDS = 5


def measure_decode_rate() -> float:
    """Raw bytes a second of one thread, the best of a few rounds. Takes some 50 ms."""
    words = np.random.default_rng(0).standard_normal(_SHAPE, dtype=np.float32).view(np.uint32) >> 16
    view = words.astype(np.uint16).reshape(-1).data.cast("B")
    payload = HostPayload((TensorSpec("bfloat16", _SHAPE),) * _NUM_TENSORS, (view,) * _NUM_TENSORS)
    codec = ZstdStateCodec()
    frame = [memoryview(b"".join(codec.encode(payload)))]
    durations: list[float] = []
    for _ in range(_ROUNDS):
        started = perf_counter()
        codec.decode(frame)
        durations.append(perf_counter() - started)
    return payload.size_bytes / max(min(durations), 1e-9)


__all__ = ("measure_decode_rate",)
