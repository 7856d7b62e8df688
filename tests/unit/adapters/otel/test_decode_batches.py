"""The largest and the mean step since any moment, against a list of all steps."""

from hypothesis import given
from hypothesis import strategies as st

from adapters.otel.span_tree import DecodeBatches


@given(st.lists(st.integers(1, 6), max_size=30), st.lists(st.integers(1, 6), max_size=30))
def test_it_tells_what_a_list_of_all_steps_would(before: list[int], after: list[int]) -> None:
    batches = DecodeBatches()
    for size in before:
        batches.step(size)
    mark = batches.mark()
    for size in after:
        batches.step(size)
    assert batches.num_steps_since(mark) == len(after)
    assert batches.max_since(mark) == max(after, default=0)
    assert batches.mean_since(mark) == (sum(after) / len(after) if after else 0)
