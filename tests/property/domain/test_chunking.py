"""The next chunk where a prompt is deep: bounded work, on the grid, by nothing but absolute positions."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from domain.chunking import DEEP_PAIRS, GRIDS, LEAST_CHUNK, MOST_SCORE_BYTES, PLAIN, Chunking, grid_of_rate
from domain.ids import SequenceId
from domain.memory.estimate import score_bytes_of_config
from domain.memory.shape import MemoryShape, StepCost
from domain.prefix.fingerprint import Fingerprint
from domain.prefix.index import ReuseRules
from domain.prefix.prompt_content import BlockGrid, MediaSpan
from domain.scheduling.plan_step import next_prompt_chunk, plan_step
from domain.scheduling.step_values import PrefillChunk, PrefillingView, StepLimits

LIMITS = StepLimits(8, 2048, 2048, max_last_chunk=64)
rules = st.builds(Chunking, st.sampled_from(GRIDS), st.integers(1 << 16, DEEP_PAIRS))
positions = st.integers(0, 300_000)


@given(rules, positions, st.integers(1, 5000))
def test_a_chunk_is_within_its_bounds_and_ends_on_the_grid(rule: Chunking, start: int, rest: int) -> None:
    num_prompt = start + rest
    end = next_prompt_chunk(start, num_prompt, LIMITS, chunking=rule)
    line, length = (start // rule.grid + 1) * rule.grid, rule.length_at(start, LIMITS.grid)
    assert start < end <= num_prompt
    assert LEAST_CHUNK <= length <= rule.grid
    assert rule.grid % length == 0
    assert length == LEAST_CHUNK or length * line <= rule.most_pairs
    assert end - start <= length
    is_rest = start % length and end >= num_prompt - 1
    assert is_rest or end <= line
    assert is_rest or end % length == 0 or end >= num_prompt - 1


@given(rules, st.integers(0, 200_000), st.integers(0, 20), st.data())
def test_chunks_before_the_last_line_are_those_of_every_prompt_from_every_line(
    rule: Chunking, deep: int, num_lines: int, data: Any
) -> None:
    first = deep // rule.grid * rule.grid
    last = first + num_lines * rule.grid
    resumed = first + data.draw(st.integers(0, num_lines)) * rule.grid
    chunks = [chunks_of(rule, start, last + data.draw(st.integers(1, 5000)), last) for start in (first, resumed)]
    assert chunks[1] == [chunk for chunk in chunks[0] if chunk[0] >= resumed]
    grid = BlockGrid(256, 2048, is_exact=True).of_model(rule)
    assert grid.step == rule.grid
    assert all(grid.is_whole_chunk(*chunk) for chunk in chunks[0])


def chunks_of(rule: Chunking, start: int, num_prompt: int, last: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while start < last:
        end = next_prompt_chunk(start, num_prompt, LIMITS, chunking=rule)
        found.append((start, end))
        start = end
    assert start == last
    return found


@example(Chunking(16, 512, 4), [(199, 8)], 4)  # no grid line cuts this image, but a line of the chunks does
@given(
    st.builds(Chunking, st.just(16), st.integers(64, 4096), st.just(4)),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), max_size=4),
    st.integers(1, 60),
)
def test_stops_at_lines_that_are_kept_leave_the_chunks_of_a_prompt_with_whole_images_as_they_are(
    rule: Chunking, drawn: list[tuple[int, int]], tail: int
) -> None:
    media, at = list[MediaSpan](), 0
    for gap, length in drawn:
        media.append(MediaSpan(at + gap, length, b""))
        at += gap + length
    grid = BlockGrid(16, 32, is_exact=True).of_model(rule)
    last = ReuseRules((), grid, image_is_whole=True).last_kept(media)
    stops = [line for line in range(grid.step, at + tail, grid.step) if line <= last]
    whole = [(span.start, span.end) for span in media]
    start, limits = 0, StepLimits(8, 96, 32)
    while start < at + tail:
        end = next_prompt_chunk(start, at + tail, limits, (), whole, rule)
        assert next_prompt_chunk(start, at + tail, limits, stops, whole, rule) == end
        start = end


@given(rules, st.integers(0, 5000), positions)
def test_chunks_never_get_longer_with_depth(rule: Chunking, further: int, position: int) -> None:
    assert rule.length_at(position + further, 2048) <= rule.length_at(position, 2048)


costs = st.builds(StepCost, base_bytes=st.just(7), token_bytes=st.integers(0, 99), seen_bytes=st.integers(0, 99))


@given(rules, costs, st.floats(0, 9), positions, st.integers(1, 5000))
def test_the_estimate_counts_every_chunk_and_never_falls(
    rule: Chunking, cost: StepCost, pair_bytes: float, start: int, rest: int
) -> None:
    step = StepCost(token_bytes=cost.token_bytes, seen_bytes=cost.seen_bytes, pair_bytes=pair_bytes)
    shape = MemoryShape(step=step, chunking=rule)
    end = next_prompt_chunk(start, start + rest, LIMITS, chunking=rule)
    assert shape.chunk_bytes(min(2048, rest), end) >= step.bytes_at(end - start, end)
    assert shape.chunk_bytes(2048, end) <= shape.chunk_bytes(2048, end + rest)


def test_a_turn_is_one_chunk_of_a_slow_model_and_several_prompts_of_a_fast_one() -> None:
    slow, deep = Chunking(512), Chunking(2048, DEEP_PAIRS)
    views = [PrefillingView(SequenceId(at), num_prompt=60, chunking=PLAIN) for at in (1, 2)]
    assert len(plan_step(views, LIMITS).prefill) == 2
    view = PrefillingView(SequenceId(3), num_computed=512, num_prompt=9000, chunking=slow)
    assert plan_step([view], LIMITS).prefill == (PrefillChunk(view.id, 512, 1024),)
    view = PrefillingView(SequenceId(4), num_computed=131_072, num_prompt=200_000, chunking=deep)
    assert plan_step([view], LIMITS).prefill == (PrefillChunk(view.id, 131_072, 131_584),)


def test_a_rule_that_divides_steps_has_prefixes_of_its_own() -> None:
    grids = [BlockGrid(256, 2048).of_model(rule) for rule in (PLAIN, Chunking(1024), Chunking(2048, DEEP_PAIRS))]
    assert len({Fingerprint(b"w", "layout", "bfloat16", grid).namespace() for grid in grids}) == 3
    assert "pairs" not in Fingerprint(b"w", "layout", "bfloat16", grids[0]).canonical_json()


def test_the_grid_is_the_largest_whose_chunk_takes_a_second() -> None:
    rates = (0.0, 133.0, 511.0, 512.0, 1023.0, 1024.0, 2048.0, 9999.0)
    assert [grid_of_rate(rate) for rate in rates] == [512, 512, 512, 512, 512, 1024, 2048, 2048]
    assert [grid_of_rate(rate, 1024) for rate in rates] == [1024] * 6 + [2048] * 2


QWEN = {"hidden_size": 5120, "num_attention_heads": 24, "head_dim": 256}


def test_scores_of_heads_without_a_fused_kernel_are_bounded() -> None:
    """At 131,072 tokens a chunk of 2,048 had 12.9 GB of them."""
    assert score_bytes_of_config(QWEN, 2) * 2048 * 131_072 == 12_884_901_888
    rule = Chunking.bounded(2048, score_bytes_of_config(QWEN, 2))
    for position in range(0, 131_072, 2048):
        scores = score_bytes_of_config(QWEN, 2) * rule.length_at(position, 2048) * (position + 2048)
        assert scores <= MOST_SCORE_BYTES
    assert score_bytes_of_config({**QWEN, "head_dim": 128}, 2) == 0
    assert Chunking.bounded(2048, 0) == Chunking(2048, DEEP_PAIRS)
