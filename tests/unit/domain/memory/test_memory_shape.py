"""The sums of domain/memory/shape."""

import pytest

from domain.memory.estimate import step_of_config
from domain.memory.shape import SPARE_SHARE, MemoryShape, StateCost, StepCost, buffer_slots


def test_a_buffer_is_charged_as_it_is_allocated():
    cost = StateCost(10)
    assert [cost.held_bytes(count) for count in (0, 1, 256, 257)] == [0, 2560, 2560, 5120]


def test_a_window_holds_the_chunk_beside_it():
    cost = StateCost(1, window=512)
    assert cost.held_bytes(300) == 512
    assert cost.held_bytes(10_000) == 512
    assert cost.held_bytes(10_000, chunk=256) == 768


def test_a_recurrent_state_is_the_same_at_every_length():
    cost = StateCost(0, fixed_bytes=77, step=1)
    assert cost.held_bytes(0) == 0
    assert cost.held_bytes(1) == cost.held_bytes(10_000) == 77


def test_the_peak_is_a_plane_over_chunk_and_end():
    shape = MemoryShape(step=StepCost(base_bytes=7, token_bytes=100, seen_bytes=3, pair_bytes=2))
    assert shape.peak_bytes(0, 100) == 0
    assert shape.peak_bytes(10, 100) == 7 + 10 * 100 + 3 * 100 + 10 * 2 * 100


def test_logits_are_those_of_the_chunk_that_ends_a_prompt():
    shape = MemoryShape(step=StepCost(token_bytes=10), logit_bytes=1000, sample_bytes=5)
    assert shape.peak_bytes(512, 512, num_logits=32) == 32 * (10 + 1000) + 5
    assert shape.peak_bytes(512, 512, num_logits=512) == 512 * (10 + 1000) + 5
    assert MemoryShape(step=StepCost(token_bytes=10), logit_bytes=1).peak_bytes(512, 512, num_logits=1) == 5120


def test_every_row_of_a_decode_step_chooses_a_token():
    step = StepCost(base_bytes=9, token_bytes=1, seen_bytes=2, pair_bytes=3)
    shape = MemoryShape(step=step, logit_bytes=4, sample_bytes=5)
    assert shape.decode_bytes(3, 100) == 9 + 3 * (1 + 200 + 300 + 4 + 5)


def test_what_cannot_be_cut_back_is_held_twice_while_a_draft_is_verified():
    states = (StateCost(10, step=1), StateCost(7, window=64, step=1), StateCost(0, fixed_bytes=500, step=1))
    shape = MemoryShape(states=states)
    assert shape.decode_bytes(3, 100) == 0
    assert shape.decode_bytes(3, 100, 5) == 3 * (7 * (64 + 5) + 500)


LLAMA = {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336, "num_hidden_layers": 32}


def test_a_step_of_a_dense_model_is_two_layers_and_scores_that_no_kernel_spares():
    step = step_of_config(LLAMA, 2, 2048)
    assert step == StepCost(
        token_bytes=2 * 2 * (14 * 4096 + 4 * (14336 + 4096)), seen_bytes=4 * 4096 * 2, pair_bytes=3 * 32 * 2
    )


def test_a_device_that_runs_ahead_holds_all_layers_or_as_much_as_it_may():
    alone = step_of_config(LLAMA, 2, 512)
    assert step_of_config(LLAMA, 2, 512, 1 << 40).base_bytes == 16 * alone.near_bytes(512)
    assert step_of_config(LLAMA, 2, 512, 1 << 30).base_bytes == 1 << 30


def test_a_nested_configuration_counts_as_the_one_inside():
    for name in ("text_config", "llm_config", "language_config"):
        assert step_of_config({"hidden_size": 9, name: LLAMA}, 2, 512) == step_of_config(LLAMA, 2, 512)


def test_latents_are_expanded_to_keys_and_values_of_every_head():
    latent = {**LLAMA, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    plain, expanded = step_of_config(LLAMA, 2, 512), step_of_config(latent, 2, 512)
    assert expanded.seen_bytes == 4 * 32 * (128 + 64 + 128) * 2 > plain.seen_bytes
    assert expanded.pair_bytes == plain.pair_bytes


def test_experts_count_as_many_times_as_a_token_has():
    experts = {**LLAMA, "num_experts_per_tok": 8, "moe_intermediate_size": 1536}
    assert step_of_config(experts, 2, 512).token_bytes == 2 * 2 * (14 * 4096 + 8 * 4 * (1536 + 4096))


@pytest.mark.parametrize(
    ("recurrent", "num_bytes"),
    [
        ({"mamba_num_heads": 64, "ssm_state_size": 128}, 2 * 4 * 4 * 64 * 256),
        ({"mamba_d_state": 16, "mamba_expand": 2}, 2 * 6 * 4 * 2 * 4096 * 16),
    ],
    ids=["blocks of scores", "a state a token"],
)
def test_state_space_layers_of_a_hybrid_count_beside_the_others(recurrent: dict[str, int], num_bytes: int):
    plain, hybrid = (step_of_config({**LLAMA, **more}, 2, 512) for more in ({}, recurrent))
    assert hybrid.token_bytes - plain.token_bytes == num_bytes


def test_a_long_buffer_grows_by_a_share_of_its_length_and_is_charged_so():
    assert [buffer_slots(count, 256) for count in (0, 257, 8_192, 8_193)] == [0, 512, 8_192, 8_704]
    assert buffer_slots(77_965, 256) == buffer_slots(81_920, 256) == 81_920
    assert StateCost(10).held_bytes(77_965) == 819_200
    assert buffer_slots(77_965, 1) == 77_965


def test_slots_follow_from_tokens_whatever_the_way_to_them_was():
    """Each length finds the buffer that any shorter one that has room for it would have left."""
    lengths = [*range(1, 600), *range(8_000, 9_000), *range(131_000, 140_000, 7)]
    for count in lengths:
        slots = buffer_slots(count, 256)
        assert count <= slots < count + max(256, count // SPARE_SHARE + 1)
        assert buffer_slots(slots, 256) == buffer_slots((count + slots) // 2, 256) == slots
