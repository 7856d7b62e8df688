"""A kernel for attention of a few queries over quantised keys and values on CUDA, where MLX has no quantised product.

Each block reads a part of one row's tokens in one head of keys, for all queries of that head, and keeps the maximum,
the sum and the weighted values of its part; a second kernel joins the parts:

    block   (part of the tokens, head of keys and at most MOST_TOGETHER of its queries, row)
    warp    32 lanes = tokens side by side, each by width / 16 lanes with 16 numbers: words are read once, in 16 bytes
    lane    score = scale of the group * sum(query * number) + bias of the group * sum(query), summed over the token's
            lanes; then the values of the token, weighted, are added to the lane's 16 numbers of each query

Scores and sums are float32. The weights of a part are relative to the largest score that its lanes have seen.
"""

from functools import cache as once
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.kv_rows import KVRows, held_by
from adapters.mlx.caches.quantised import QuantisedBuffers

WIDTHS = (64, 128, 256)
"""The widths of heads that the kernel takes: 16 numbers a lane, a power of two of lanes a token."""

MOST_TOGETHER = 4
"""The most queries of a block: each needs sixteen registers of a lane."""

_THREADS = 128
_BLOCKS = 528
"""Four for each of an H200's 132 multiprocessors."""

_LEAST_PART = 64

_NONE, _CAUSAL, _ARRAY = range(3)

_PARTS = """
constexpr int LANES = D / 16, BESIDE = 32 / LANES, WARPS = 4;
const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = lane % LANES, slot = lane / LANES;
const int groups = gridDim.y / CHUNKS, group = blockIdx.y / CHUNKS, chunk = blockIdx.y % CHUNKS, row = blockIdx.z;
const int end = at[0], slots = kw_shape[2];
constexpr int count = COUNT, num = EACH * COUNT;
__shared__ float4 asked[TOGETHER][4][LANES];
__shared__ float sums[TOGETHER][LANES];
__shared__ float merged[WARPS][TOGETHER][D + 2];
for (int i = threadIdx.x; i < TOGETHER * D; i += 128) {
  const int m = i / D, d = i % D, query = chunk * TOGETHER + m;
  const size_t head = size_t(row) * groups * EACH + group * EACH + query / count;
  float value = 0;
  if (query < num) value = static_cast<float>(q[(head * count + query % count) * D + d]) * scale[0];
  reinterpret_cast<float*>(&asked[m][(d % 16) / 4][d / 16])[d % 4] = value;
}
__syncthreads();
for (int i = threadIdx.x; i < TOGETHER * LANES; i += 128) {
  float sum = 0;
  #pragma unroll
  for (int j = 0; j < 4; j++) {
    float4 v = asked[i / LANES][j][i % LANES];
    sum += v.x + v.y + v.z + v.w;
  }
  sums[i / LANES][i % LANES] = sum;
}
__syncthreads();
float top[TOGETHER], total[TOGETHER], found[TOGETHER][16];
#pragma unroll
for (int m = 0; m < TOGETHER; m++) {
  top[m] = -INFINITY;
  total[m] = 0;
  #pragma unroll
  for (int i = 0; i < 16; i++) found[m][i] = 0;
}
const int length = (end + gridDim.x - 1) / gridDim.x, first = max(int(blockIdx.x) * length, padding[row]);
const int last = min(end, int(blockIdx.x) * length + length);
const size_t base = (size_t(row) * groups + group) * slots;
for (int step = first + warp * BESIDE; step < last; step += WARPS * BESIDE) {
  const int t = step + slot;
  const bool is_there = t < last;
  const size_t token = base + (is_there ? t : first);
  uint32_t kn[KB / 2], vn[VB / 2];
  #pragma unroll
  for (int i = 0; i < KB / 2; i++) kn[i] = kw[token * (D * KB / 32) + part * (KB / 2) + i];
  #pragma unroll
  for (int i = 0; i < VB / 2; i++) vn[i] = vw[token * (D * VB / 32) + part * (VB / 2) + i];
  const float kscale = static_cast<float>(ks[token * (D / KG) + part * 16 / KG]);
  const float kbias = static_cast<float>(kb[token * (D / KG) + part * 16 / KG]);
  const float vscale = static_cast<float>(vs[token * (D / VG) + part * 16 / VG]);
  const float vbias = static_cast<float>(vb[token * (D / VG) + part * 16 / VG]);
  float k[16], v[16];
  #pragma unroll
  for (int i = 0; i < 16; i++) {
    k[i] = float((kn[i * KB / 32] >> (i * KB % 32)) & ((1u << KB) - 1));
    v[i] = vscale * float((vn[i * VB / 32] >> (i * VB % 32)) & ((1u << VB) - 1)) + vbias;
  }
  #pragma unroll
  for (int m = 0; m < TOGETHER; m++) {
    float score = 0;
    #pragma unroll
    for (int j = 0; j < 4; j++) {
      const float4 a = asked[m][j][part];
      score += a.x * k[4 * j] + a.y * k[4 * j + 1] + a.z * k[4 * j + 2] + a.w * k[4 * j + 3];
    }
    score = kscale * score + kbias * sums[m][part];
    #pragma unroll
    for (int other = 1; other < LANES; other *= 2) score += __shfl_xor_sync(0xffffffff, score, other);
    const int position = (chunk * TOGETHER + m) % count;
    bool is_seen = is_there;
    if (MASK == 1) is_seen = is_seen && t <= end - count + position;
    if (MASK == 2) is_seen = is_seen && seen[(size_t(row) * count + position) * end + (is_there ? t : 0)];
    if (is_seen) {
      if (score > top[m]) {
        const float less = __expf(top[m] - score);
        total[m] *= less;
        #pragma unroll
        for (int i = 0; i < 16; i++) found[m][i] *= less;
        top[m] = score;
      }
      const float weight = __expf(score - top[m]);
      total[m] += weight;
      #pragma unroll
      for (int i = 0; i < 16; i++) found[m][i] += weight * v[i];
    }
  }
}
#pragma unroll
for (int m = 0; m < TOGETHER; m++) {
  float most = top[m];
  #pragma unroll
  for (int other = LANES; other < 32; other *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, other));
  const float share = most == -INFINITY ? 0 : __expf(top[m] - most);
  float sum = total[m] * share;
  #pragma unroll
  for (int other = LANES; other < 32; other *= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
  #pragma unroll
  for (int i = 0; i < 16; i++) {
    float value = found[m][i] * share;
    #pragma unroll
    for (int other = LANES; other < 32; other *= 2) value += __shfl_xor_sync(0xffffffff, value, other);
    if (slot == 0) merged[warp][m][part * 16 + i] = value;
  }
  if (lane == 0) {
    merged[warp][m][D] = most;
    merged[warp][m][D + 1] = sum;
  }
}
__syncthreads();
for (int i = threadIdx.x; i < TOGETHER * D; i += 128) {
  const int m = i / D, d = i % D, query = chunk * TOGETHER + m;
  float most = -INFINITY, sum = 0, value = 0;
  for (int w = 0; w < WARPS; w++) most = fmaxf(most, merged[w][m][D]);
  for (int w = 0; w < WARPS; w++) {
    const float share = most == -INFINITY ? 0 : __expf(merged[w][m][D] - most);
    sum += share * merged[w][m][D + 1];
    value += share * merged[w][m][d];
  }
  if (query < num) {
    const size_t place = ((size_t(row) * groups + group) * num + query) * gridDim.x + blockIdx.x;
    out[place * D + d] = value;
    if (d == 0) {
      tops[place] = most;
      totals[place] = sum;
    }
  }
}
"""

_JOIN = """
const int num = tops_shape[2], parts = tops_shape[3], group = blockIdx.y / num, query = blockIdx.y % num;
const size_t place = (size_t(blockIdx.z) * (gridDim.y / num) + group) * num + query;
const int head = group * EACH + query / (num / EACH);
float most = SINKS ? static_cast<float>(sinks[head]) : -INFINITY;
#pragma unroll 8
for (int i = 0; i < parts; i++) most = fmaxf(most, tops[place * parts + i]);
float sum = SINKS ? __expf(static_cast<float>(sinks[head]) - most) : 0, value = 0;
#pragma unroll 8
for (int i = 0; i < parts; i++) {
  const float share = most == -INFINITY ? 0 : __expf(tops[place * parts + i] - most);
  sum += share * totals[place * parts + i];
  value += share * found[(place * parts + i) * D + threadIdx.x];
}
out[place * D + threadIdx.x] = static_cast<T>(value / sum);
"""


@once
def _kernels() -> tuple[Any, Any]:
    make: Any = getattr(mx.fast, "cuda_kernel")  # noqa: B009 - there is none in the types of a build without CUDA
    buffers = ["kw", "ks", "kb", "vw", "vs", "vb"]
    parts = make(
        "cairn_quantised_parts", ["q", *buffers, "padding", "seen", "at", "scale"], ["out", "tops", "totals"], _PARTS
    )
    join = make("cairn_quantised_join", ["found", "tops", "totals", "sinks"], ["out"], _JOIN)
    return parts, join


class _Steps:
    """The small arrays of a pass, which all layers share. Compute thread only."""

    def __init__(self) -> None:
        self._at: dict[int, mx.array] = {}
        self._scales: dict[float, mx.array] = {}
        self._padding: dict[int, mx.array] = {}
        self.nothing = mx.zeros(1, mx.int32)

    def at(self, end: int) -> mx.array:
        """The end of the rows."""
        if end not in self._at:
            self._at = {end: mx.array([end], mx.int32)}
        return self._at[end]

    def no_padding(self, rows: int) -> mx.array:
        return self._padding.setdefault(rows, mx.zeros(rows, mx.int32))

    def scale(self, value: float) -> mx.array:
        return self._scales.setdefault(value, mx.array([value], mx.float32))


@once
def _steps() -> _Steps:
    return _Steps()


def attend_on_cuda(
    queries: mx.array, cache: QuantisedBuffers, scale: float, mask: Any, sinks: mx.array | None
) -> mx.array | None:
    """As `attend_quantised`; None for a mask or a width that the kernel does not take."""
    rows, heads, count, width = queries.shape
    buffers, (of_keys, of_values) = held_by(cache), cache.sides
    groups, end = buffers[0].shape[1], cache.extent()[1]
    steps = _steps()
    kind, seen = _NONE, steps.nothing
    if isinstance(mask, str):
        kind = _CAUSAL
    elif mask is not None:
        if mask.dtype != mx.bool_ or mask.shape not in ((rows, 1, count, end), (count, end)):
            return None
        kind, seen = _ARRAY, mx.broadcast_to(mask, (rows, 1, count, end))
    if of_values.width != width or width not in WIDTHS:
        return None
    each = heads // groups
    together = min(MOST_TOGETHER, each * count)
    chunks = -(-each * count // together)
    parts = max(1, min(-(-end // _LEAST_PART), _BLOCKS // (rows * groups * chunks)))
    padding = cache.left_padding if isinstance(cache, KVRows) else steps.no_padding(rows)
    partial, join = _kernels()
    shape = (rows, groups, each * count, parts)
    found = partial(
        inputs=[queries, *buffers, padding, seen, steps.at(end), steps.scale(scale)],
        template=[
            ("D", width), ("KB", of_keys.bits), ("VB", of_values.bits), ("MASK", kind), ("EACH", each),
            ("KG", of_keys.group_size), ("VG", of_values.group_size), ("TOGETHER", together),
            ("CHUNKS", chunks), ("COUNT", count),
        ],
        grid=(parts * _THREADS, groups * chunks, rows),
        threadgroup=(_THREADS, 1, 1),
        output_shapes=[(*shape, width), shape, shape],
        output_dtypes=[mx.float32] * 3,
    )  # fmt: skip
    joined: mx.array = join(
        inputs=[*found, steps.nothing if sinks is None else sinks],
        template=[("T", queries.dtype), ("D", width), ("EACH", each), ("SINKS", int(sinks is not None))],
        grid=(width, groups * each * count, rows),
        threadgroup=(width, 1, 1),
        output_shapes=[(rows, heads, count, width)],
        output_dtypes=[queries.dtype],
    )[0]
    return joined
