"""Estimates of the memory that a forward pass needs beyond the states: by the configuration, and corrected by peaks.

`step_of_config` estimates from the numbers in config.json, and errs upwards. Measured peaks correct it by two bounded
factors a model:

    near    memory of a chunk anywhere              measured by a chunk at the start of a prompt
    deep    memory that grows with earlier tokens   measured by a chunk up to DEEP_CHUNKS of its own length further on

A load measures one chunk of each kind. A later measurement counts at once where it is larger, and by a sixteenth of the
difference where it is smaller: for the larger part of the two, or for `deep` where the chunk lies far from the start.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from domain.memory.shape import ImageCost, MemoryShape, StepCost

LEAST_NEAR, MOST = 0.02, 8.0
MIN_BYTES = 1 << 20
"""Measurements below this say nothing: other allocations at the same time are larger."""
DEEP_CHUNKS = 8
_DESCENT = 16

_NESTED = ("text_config", "llm_config", "language_config")
FUSED_DIMS = (64, 80, 128)
"""The widths of heads for which Metal has a fused kernel of many queries. M5 has one for 256 as well, for 1024 queries
and more, which chunks do not have where a prompt is deep."""
_WIDE_BYTES = 4
"""Bytes a number of recurrent layers and scores, which are computed in float32."""
_SCAN_BLOCK = 256
"""The number of tokens that a state space model compares with each other at once."""


@dataclass(frozen=True, slots=True)
class PeakCorrection:
    """The factors between estimated and measured peaks: `near` in LEAST_NEAR..MOST, `deep` in 0..MOST.
    `num_measured`: chunks so far; the factors are 1 while it is 0."""

    near: float = 1.0
    deep: float = 1.0
    num_measured: int = 0

    @classmethod
    def of_load(cls, shape: MemoryShape, chunk: int, peaks: Mapping[int, int]) -> "PeakCorrection":
        """Returns the correction by the peaks of a load. `peaks`: by the end of their chunk, of the first chunk and
        optionally of one far from the start. `shape`: uncorrected."""
        step, (end, peak) = shape.step, max(peaks.items())
        if peaks[chunk] < MIN_BYTES:
            return cls()
        near_bytes, at_start = step.near_bytes(chunk), step.deep_bytes(chunk, chunk)
        # Without a chunk far from the start the growing part is unknown. It counts in full, or as much of it as the
        # peak at the start leaves possible.
        if end == chunk:
            near = _bounded(peak / max(near_bytes + at_start, 1), LEAST_NEAR)
            return cls(near, min(1.0, peak / max(at_start, 1)), 1)
        deep = _bounded((peak - peaks[chunk]) / max(step.deep_bytes(chunk, end) - at_start, 1), 0.0)
        return cls(_bounded((peaks[chunk] - deep * at_start) / max(near_bytes, 1), LEAST_NEAR), deep, 2)

    def learnt(self, shape: MemoryShape, chunk: int, end: int, measured_bytes: int) -> "PeakCorrection":
        """Returns the correction after the peak of one more chunk, which ends at `end`. `shape`: uncorrected."""
        near_bytes, deep_bytes = shape.step.near_bytes(chunk), shape.step.deep_bytes(chunk, end)
        if min(near_bytes, deep_bytes) <= 0 or max(near_bytes + deep_bytes, measured_bytes) < MIN_BYTES:
            return self
        now = replace(self, num_measured=self.num_measured + 1)
        # One peak cannot correct two factors. It corrects the one whose part is the larger, except close to the start,
        # where `deep` has hardly an effect, and far from it, where an error of `deep` would grow with every chunk.
        if end <= 2 * chunk or (end <= DEEP_CHUNKS * chunk and self.near * near_bytes > self.deep * deep_bytes):
            wanted = (measured_bytes - self.deep * deep_bytes) / near_bytes
            return replace(now, near=_bounded(_moved(self.near, wanted), LEAST_NEAR))
        wanted = (measured_bytes - self.near * near_bytes) / deep_bytes
        return replace(now, deep=_bounded(_moved(self.deep, wanted), 0.0))

    def applied(self, shape: MemoryShape) -> MemoryShape:
        """Returns the shape with a corrected step; weights and states need no correction."""
        step = replace(
            shape.step,
            base_bytes=round(shape.step.base_bytes * self.near),
            token_bytes=round(shape.step.token_bytes * self.near),
            seen_bytes=round(shape.step.seen_bytes * self.deep),
            pair_bytes=shape.step.pair_bytes * self.deep,
        )
        return replace(shape, step=step)


def _moved(factor: float, wanted: float) -> float:
    # Too small a factor exceeds the memory once, and that is once too often; too large a one makes a request wait.
    return wanted if wanted > factor else factor - (factor - wanted) / _DESCENT


def _bounded(factor: float, least: float) -> float:
    return min(max(factor, least), MOST)


def step_of_config(config: Mapping[str, Any], dtype_bytes: int, chunk: int, most_ahead_bytes: int = 0) -> StepCost:
    """Returns the cost of two layers with all of their temporaries, and attention without a fused kernel. A value that
    the configuration does not name counts as a common one. `dtype_bytes`: of one activation. `most_ahead_bytes`: bound
    on the work of other layers that the device holds at the same time for a chunk of `chunk` tokens."""
    hidden, heads = _widths(config)
    layer = dtype_bytes * (6 * hidden + 8 * heads * _head_dim(config, hidden, heads) + _feed_forward(config, hidden))
    layer += _recurrent(config, hidden)
    num_layers = (
        number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers") or 32
    )
    return StepCost(
        base_bytes=min(num_layers * layer * chunk, most_ahead_bytes),
        token_bytes=2 * layer,
        seen_bytes=4 * heads * _seen_dim(config, hidden, heads) * dtype_bytes,
        pair_bytes=3 * heads * dtype_bytes,
    )


def score_bytes_of_config(config: Mapping[str, Any], dtype_bytes: int) -> int:
    """Returns the bytes of one pair's scores over all heads; 0 where Metal has a fused kernel for the heads."""
    hidden, heads = _widths(config)
    is_fused = _head_dim(config, hidden, heads) in FUSED_DIMS and not number(config, "kv_lora_rank")
    return 0 if is_fused else heads * dtype_bytes


def image_cost_of_config(config: Mapping[str, Any], dtype_bytes: int) -> ImageCost:
    """Returns the cost of images by the tower's configuration, and attention without a fused kernel. `dtype_bytes`: of
    one activation, of the tower and the trunk."""
    vision = {"text_config": config.get("vision_config")}
    hidden = number(vision, "hidden_size", "embed_dim") or 1280
    inner = number(vision, "intermediate_size") or 4 * hidden
    heads = number(vision, "num_attention_heads", "num_heads") or 16
    patch = number(vision, "patch_size", "spatial_patch_size") or 14
    depth = len(cast("Mapping[str, Any]", config.get("vision_config") or {}).get("deepstack_visual_indexes") or ())
    side = number(vision, "spatial_merge_size") or number(config, "spatial_merge_size", "scale_factor") or 1
    patches = side * side
    if number(config, "scale_factor"):  # tiles attend to themselves
        pairs, near = 0.0, patches * ((number(vision, "image_size") or 512) // patch) ** 2
    else:
        pairs, near = float(patches * patches), 0
    scores = 3 * heads * dtype_bytes
    return ImageCost(
        prepared_bytes=_WIDE_BYTES * patches * 3 * patch**2 * (number(vision, "temporal_patch_size") or 1),
        feature_bytes=(1 + depth) * dtype_bytes * (number(config, "hidden_size") or 4096),
        tower=StepCost(
            token_bytes=2 * patches * dtype_bytes * (10 * hidden + 2 * inner) + near * scores,
            pair_bytes=pairs * scores,
        ),
    )


def _widths(config: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the hidden width and the number of heads."""
    hidden = number(config, "hidden_size", "d_model", "n_embd", "dim", "model_dim", "hidden_dim") or 4096
    heads = number(config, "num_attention_heads", "n_heads", "n_head", "num_heads")
    return hidden, heads or max(1, hidden // (number(config, "head_dim") or 64))


def _head_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    nope = number(config, "qk_nope_head_dim") or 0
    own = number(config, "head_dim", "hidden_size_per_head") or max(1, hidden // heads)
    return max(own, nope + (number(config, "qk_rope_head_dim") or 0))


def _seen_dim(config: Mapping[str, Any], hidden: int, heads: int) -> int:
    """Returns the numbers a head and earlier token: a copy of keys or values; latents are expanded to both."""
    dim = _head_dim(config, hidden, heads)
    return dim + (number(config, "v_head_dim") or dim) if number(config, "kv_lora_rank") else dim


def _feed_forward(config: Mapping[str, Any], hidden: int) -> int:
    inner = number(config, "intermediate_size", "d_ff", "n_inner", "block_ff_dim", "hidden_dim") or 4 * hidden
    experts = number(config, "num_experts_per_tok", "moe_topk", "experts_per_token", "num_experts_per_token") or 1
    width = number(config, "moe_intermediate_size", "expert_hidden_size") or inner
    return max(4 * inner, experts * 4 * (width + hidden))


def _recurrent(config: Mapping[str, Any], hidden: int) -> int:
    """Returns the bytes a token of a state space layer: a block's scores by head, or the state at every token."""
    state = number(config, "state_size", "mamba_d_state", "ssm_state_size")
    if state is None:
        return 0
    if heads := number(config, "mamba_num_heads", "mamba_n_heads", "num_heads"):
        return 4 * _WIDE_BYTES * heads * _SCAN_BLOCK
    return 6 * _WIDE_BYTES * (number(config, "mamba_expand") or 2) * hidden * state


def nested_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration of the text model within; empty if there is none."""
    for name in _NESTED:
        if isinstance(config.get(name), Mapping):
            return cast(Mapping[str, Any], config[name])
    return {}


def has_latents(config: Mapping[str, Any]) -> bool:
    """True if layers of attention may keep latents, from which keys and values are computed."""
    return number(config, "kv_lora_rank") is not None


def number(config: Mapping[str, Any], *names: str) -> int | None:
    """Returns the first of these that is a positive whole number; the nested text configuration comes first."""
    nested = [config[name] for name in _NESTED if name in config]
    for level in (*nested, config):
        if not isinstance(level, Mapping):
            continue
        for name in names:
            value = cast(Mapping[str, Any], level).get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
