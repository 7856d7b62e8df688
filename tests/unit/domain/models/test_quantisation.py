"""Forms, recipes and refusals of quantised copies, and the forms that a measured recipe assigns."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.models.quantisation import (
    Part,
    PlannedMatrix,
    Quantisation,
    QuantPlan,
    assigned,
    by_rules,
    mixed,
)

FORMS = [Quantisation("affine", bits, group) for bits in (3, 4, 6, 8) for group in (32, 64)]


@pytest.mark.parametrize(
    ("mode", "form"),
    [
        ("", Quantisation("affine", 4, 64)),
        ("mxfp4", Quantisation("mxfp4", 4, 32)),
        ("mxfp8", Quantisation("mxfp8", 8, 32)),
        ("nvfp4", Quantisation("nvfp4", 4, 16)),
    ],
)
def test_a_mode_has_its_defaults(mode: str, form: Quantisation) -> None:
    assert Quantisation.of(mode) == form


@pytest.mark.parametrize(
    ("given_fields", "field"),
    [
        ({"mode": "q4_k"}, "mode"),
        ({"bits": 7}, "bits"),
        ({"bits": 1}, "bits"),
        ({"group": 16}, "group"),
        ({"mode": "mxfp4", "bits": 6}, "bits"),
        ({"mode": "nvfp4", "group": 64}, "group"),
    ],
)
def test_a_form_that_mlx_lacks_is_refused_by_its_field(given_fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Quantisation.of(**given_fields)
    assert refused.value.param == field
    assert refused.value.message.startswith(field)


def test_rules_of_a_file_decide_in_their_order() -> None:
    rules = {"*.down_proj": {"bits": 6}, "*.layers.0.*": False, "lm_head": {"mode": "mxfp8"}, "*": {"bits": 3}}
    recipe = by_rules(rules, Quantisation())
    paths = ("model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj", "lm_head", "model.layers.1.mlp.up_proj")
    found = [recipe(path) for path in paths]
    assert found == [Quantisation("affine", 6), None, Quantisation("mxfp8", 8, 32), Quantisation("affine", 3)]
    assert by_rules({"lm_head": False}, Quantisation())("model.embed_tokens") == Quantisation()


@pytest.mark.parametrize(
    "rules", [[], {"*": True}, {"*": {"bit": 4}}, {"*": {"bits": 7}}, {"*": {"bits": "4"}}, {"*": None}]
)
def test_a_file_without_forms_is_refused(rules: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        by_rules(rules, Quantisation())
    assert refused.value.param == "recipe"


def test_a_mixed_recipe_needs_down_projections() -> None:
    with pytest.raises(InvalidRequest) as refused:
        mixed("mixed_4_6", 64, ["model.layers.0.fc1"], 1)
    assert refused.value.param == "recipe"


# ---- measured --------------------------------------------------------------------------------------------------------


def part(name: str, choices: Mapping[Quantisation, tuple[int, float]]) -> Part:
    return Part((name,), choices)


parts = st.lists(
    st.dictionaries(st.sampled_from(FORMS), st.tuples(st.integers(1, 40), st.floats(0, 9)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
).map(lambda found: [part(str(at), choices) for at, choices in enumerate(found)])


@given(parts, st.integers(1, 160))
def test_assigned_forms_fit_and_are_as_good_as_their_steps_allow(found: list[Part], most: int) -> None:
    """Of all that fits, the best loses at most what the best single step from the chosen one saves."""
    smallest = sum(min(size for size, _ in one.choices.values()) for one in found)
    if smallest > most:
        with pytest.raises(InvalidRequest) as refused:
            assigned(found, most)
        assert refused.value.param == "size"
        return
    forms = assigned(found, most)
    chosen = [one.choices[forms[one.paths[0]]] for one in found]
    assert sum(size for size, _ in chosen) <= most
    loss = sum(loss for _, loss in chosen)
    best = min(
        sum(choice[1] for choice in combination)
        for combination in product(*(one.choices.values() for one in found))
        if sum(choice[0] for choice in combination) <= most
    )
    largest_step = max(max(loss for _, loss in one.choices.values()) for one in found)
    assert loss <= best + largest_step + 1e-9


def test_bits_go_where_they_save_the_most() -> None:
    low, high = Quantisation("affine", 3), Quantisation("affine", 6)
    found = [part("dull", {low: (10, 0.1), high: (20, 0.0)}), part("keen", {low: (10, 5.0), high: (20, 0.1)})]
    assert assigned(found, 30) == {"dull": low, "keen": high}
    assert assigned(found, 40) == {"dull": high, "keen": high}


def test_two_bits_are_used_where_nothing_else_fits() -> None:
    two, three = Quantisation("affine", 2), Quantisation("affine", 3)
    found = [part("a", {two: (10, 0.2), three: (15, 0.1)}), part("b", {two: (10, 0.1), three: (15, 0.09)})]
    assert assigned(found, 30) == {"a": three, "b": three}
    assert assigned(found, 29) == {"a": three, "b": two}


# ---- the plan --------------------------------------------------------------------------------------------------------


def planned(form: Quantisation | None, count: int = 64, *, is_indivisible: bool = False) -> PlannedMatrix:
    return PlannedMatrix("a", form, count, count // 2, count, is_indivisible)


def plan_of(*matrices: PlannedMatrix, free: int | None = None) -> QuantPlan:
    return QuantPlan(matrices, free_bytes=free)


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        (plan_of(planned(None)), "model"),
        (plan_of(planned(Quantisation()), planned(None, 2, is_indivisible=True)), "group"),
        (plan_of(planned(Quantisation("affine", 2))), "bits"),
        (plan_of(planned(Quantisation()), free=34), "out"),
    ],
)
def test_a_plan_that_serves_nobody_is_refused_by_its_field(plan: QuantPlan, field: str) -> None:
    assert plan.refusal(is_pooled=False, force=False, allow_plain=False)[0] == field


def test_what_loses_much_can_be_forced() -> None:
    two, plain = planned(Quantisation("affine", 2)), planned(None, 64, is_indivisible=True)
    assert plan_of(two).refusal(is_pooled=False, force=True, allow_plain=False) == ("", "")
    assert plan_of(planned(Quantisation()), plain).refusal(is_pooled=False, force=False, allow_plain=True) == ("", "")
    four = plan_of(planned(Quantisation()))
    assert four.refusal(is_pooled=True, force=False, allow_plain=False)[0] == "bits"
    assert four.refusal(is_pooled=True, force=True, allow_plain=False) == ("", "")
    assert plan_of(two, planned(Quantisation())).refusal(is_pooled=False, force=False, allow_plain=False) == ("", "")
    assert plan_of(planned(Quantisation()), free=36).refusal(is_pooled=False, force=False, allow_plain=False) == (
        "",
        "",
    )


def test_a_plan_counts_the_network_and_what_is_beside_it() -> None:
    plan = QuantPlan((planned(Quantisation(), 64), planned(None, 16)), copied=("mtp.x",), copied_bytes=100)
    assert (plan.num_bytes, plan.num_weights, plan.bits_per_weight, plan.step_bytes) == (140, 80, 4.0, 64)
    assert plan.forms == {"4 bits": 64, "plain": 16}
