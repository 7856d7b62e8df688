"""Quantisation of a model's weights: the form of each matrix, recipes that choose it, and what is refused. Pure.

    family's own rule ──► a form of its own, or plain: kept as it is (routers of mixtures, say)
                     └──► no opinion: the recipe decides

Matrices are named by their path in the network (`model.layers.0.mlp.down_proj`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, cast

from domain.errors import InvalidRequest, require
from domain.printable import printable

MODES: Mapping[str, tuple[int, int]] = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
"""Each mode's group size and bits, where a request names none. All but affine have these only."""

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)

MIXED: Mapping[str, tuple[int, int]] = {
    "mixed_2_6": (2, 6),
    "mixed_3_4": (3, 4),
    "mixed_3_6": (3, 6),
    "mixed_4_6": (4, 6),
}
"""mlx-lm's recipes: low and high bits."""

MEASURED = "measured"
"""The recipe whose bits follow from the measured sensitivity of each part of the model."""

_LEAST_BITS = 3

PLAIN_SHARE = 0.01
"""The share of a model's weights that may stay plain because their rows do not divide by the group size."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The form of a matrix. `group`: values that share a scale."""

    mode: str = "affine"
    bits: int = 4
    group: int = 64

    @classmethod
    def of(cls, mode: str = "", bits: int | None = None, group: int | None = None) -> "Quantisation":
        """Returns the form of a request, with the mode's defaults. Raises InvalidRequest that names the field."""
        mode = mode or "affine"
        require(mode in MODES, "mode", f"must be one of {', '.join(MODES)}, not {printable(mode)}")
        own_group, own_bits = MODES[mode]
        form = cls(mode, own_bits if bits is None else bits, own_group if group is None else group)
        if mode != "affine":
            require(form.bits == own_bits, "bits", f"must be {own_bits} with {mode}, or be left out")
            require(form.group == own_group, "group", f"must be {own_group} with {mode}, or be left out")
        require(form.bits in BITS, "bits", f"must be one of {', '.join(map(str, BITS))}, not {form.bits}")
        require(form.group in (*GROUPS, own_group), "group", f"must be one of {', '.join(map(str, GROUPS))}")
        return form

    @property
    def table(self) -> dict[str, Any]:
        """The form as config.json has it."""
        return {"group_size": self.group, "bits": self.bits, "mode": self.mode}

    def __str__(self) -> str:
        name = f"{self.bits} bits" if self.mode == "affine" else self.mode
        return name if self.group == MODES[self.mode][0] else f"{name}, groups of {self.group}"


# ---- recipes --------------------------------------------------------------------------------------------------------

Recipe = Callable[[str], Quantisation | None]
"""Returns the form of the matrix at a path; None for plain."""


def mixed(name: str, group: int, paths: Sequence[str], num_layers: int) -> Recipe:
    """Returns a recipe of mlx-lm: high bits for the output matrix, and for values and down projections in the first
    and the last eighth of the layers and in every third between (`mixed_quant_predicate_builder`). Raises
    InvalidRequest for a network without down projections."""
    low, high = MIXED[name]
    down = next((path for path in paths if "down_proj" in path), "")
    if not down:
        raise InvalidRequest(f"recipe {name} needs layers with a down_proj, which this model lacks", param="recipe")
    place = next((at for at, part in enumerate(down.split(".")) if part.isdigit()), 0)
    eighth = num_layers // 8

    def choose(path: str) -> Quantisation:
        parts = path.split(".")
        index = int(parts[place]) if len(parts) > place and parts[place].isdigit() else 0
        is_edge = index < eighth or index >= 7 * num_layers // 8 or (index - eighth) % 3 == 2
        is_sensitive = is_edge and any(part in path for part in ("v_proj", "v_a_proj", "v_b_proj", "down_proj"))
        return Quantisation("affine", high if is_sensitive or "lm_head" in path else low, group)

    return choose


def by_rules(rules: object, default: Quantisation) -> Recipe:
    """Returns the recipe of a file: an object of patterns (`*.down_proj`) with `{"bits": ..., "group_size": ...,
    "mode": ...}`, or false for plain. The first that matches decides, `default` where none does. Raises
    InvalidRequest."""
    require(isinstance(rules, dict), "recipe", "must be an object of patterns and forms")
    forms: list[tuple[str, Quantisation | None]] = []
    for pattern, value in cast(dict[str, Any], rules).items():
        known = isinstance(value, dict) and set(cast(dict[str, Any], value)) <= {"bits", "group_size", "mode"}
        require(
            known or value is False,
            "recipe",
            f"has no form (bits, group_size, mode; or false) for {printable(pattern)}",
        )
        forms.append((pattern, _form(cast(dict[str, Any], value)) if known else None))

    def choose(path: str) -> Quantisation | None:
        return next((form for pattern, form in forms if fnmatchcase(path, pattern)), default)

    return choose


def _form(value: Mapping[str, Any]) -> Quantisation:
    mode, bits, group = str(value.get("mode", "")), value.get("bits"), value.get("group_size")
    numbers = [one for one in (bits, group) if one is not None]
    require(all(type(one) is int for one in numbers), "recipe", "must have whole numbers as bits and group_size")
    try:
        return Quantisation.of(mode, bits, group)
    except InvalidRequest as error:
        raise InvalidRequest(f"recipe: {error.message}", param="recipe") from None


# ---- measured bits --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """Matrices that get the same form. `choices`: by form, the bytes written, and the loss of the whole model when only
    this part has it."""

    paths: tuple[str, ...]
    choices: Mapping[Quantisation, tuple[int, float]]


def assigned(parts: Sequence[Part], most_bytes: int) -> dict[str, Quantisation]:
    """Returns the form of every path with the least sum of losses whose bytes stay within `most_bytes`: the losses of
    small changes add up. Those of 2 bits do not, which are used where nothing else fits. Raises InvalidRequest if the
    fewest bytes do not fit.

    Steps along each part's lower convex hull are taken by the loss that they save a byte, the most first.
    """
    least = _LEAST_BITS
    if sum(_hull(part, least)[0][0] for part in parts) > most_bytes:
        least = 0
    hulls = [_hull(part, least) for part in parts]
    used = sum(hull[0][0] for hull in hulls)
    if used > most_bytes:
        raise InvalidRequest(f"size must leave {used} bytes for the model's matrices, not {most_bytes}", param="size")
    taken = [0] * len(parts)
    steps = [
        (_saved(*pair), at, number) for at, hull in enumerate(hulls) for number, pair in enumerate(pairwise(hull), 1)
    ]
    for _, at, number in sorted(steps, key=lambda step: (-step[0], step[1], step[2])):
        added = hulls[at][number][0] - hulls[at][number - 1][0]
        if taken[at] == number - 1 and used + added <= most_bytes:
            used, taken[at] = used + added, number
    chosen = (hull[number][2] for hull, number in zip(hulls, taken, strict=True))
    return {path: form for part, form in zip(parts, chosen, strict=True) for path in part.paths}


_Choice = tuple[int, float, Quantisation]


def _saved(low: _Choice, high: _Choice) -> float:
    return (low[1] - high[1]) / (high[0] - low[0])


def _hull(part: Part, least_bits: int) -> list[_Choice]:
    """The choices on the lower convex hull of losses over bytes, ascending: each step saves less a byte than the
    last."""
    hull: list[_Choice] = []
    choices = [(size, loss, form) for form, (size, loss) in part.choices.items() if form.bits >= least_bits]
    for choice in sorted(choices, key=lambda one: one[:2]):
        if hull and choice[1] >= hull[-1][1]:
            continue
        while len(hull) > 1 and _saved(hull[-1], choice) >= _saved(hull[-2], hull[-1]):
            hull.pop()
        hull.append(choice)
    return hull


# ---- the plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedMatrix:
    """A part of the network that is written. `form`: None for plain. `step_bytes`: the most memory that it takes."""

    path: str
    form: Quantisation | None
    num_weights: int
    num_bytes: int
    step_bytes: int
    is_indivisible: bool = False
    """It stays plain, because its rows do not divide by the group size."""


@dataclass(frozen=True, slots=True)
class QuantPlan:
    """Everything that quantising a model would write. `copied`: the names of tensors beside the network, such as
    those of a tower or a head for several tokens, and `copied_bytes`. `free_bytes`: on the disk; None if unknown.
    `pass_bytes`: the most memory of measuring or comparing: the source's largest layer, and what is outside all."""

    matrices: tuple[PlannedMatrix, ...]
    num_shards: int = 1
    copied: tuple[str, ...] = ()
    copied_bytes: int = 0
    free_bytes: int | None = None
    pass_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return sum(matrix.num_bytes for matrix in self.matrices) + self.copied_bytes

    @property
    def num_weights(self) -> int:
        return sum(matrix.num_weights for matrix in self.matrices)

    @property
    def bits_per_weight(self) -> float:
        """The bits of a weight of the network, scales and plain ones included."""
        return 8 * (self.num_bytes - self.copied_bytes) / max(1, self.num_weights)

    @property
    def step_bytes(self) -> int:
        return max((matrix.step_bytes for matrix in self.matrices), default=0)

    @property
    def forms(self) -> dict[str, int]:
        """The number of weights by form, the most first; `plain` for the rest."""
        found: dict[str, int] = {}
        for matrix in self.matrices:
            name = str(matrix.form) if matrix.form else "plain"
            found[name] = found.get(name, 0) + matrix.num_weights
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))

    def refusal(self, *, is_pooled: bool, force: bool, allow_plain: bool) -> tuple[str, str]:
        """Returns the field and the reason why this is not done; empty if it may be."""
        indivisible = sum(matrix.num_weights for matrix in self.matrices if matrix.is_indivisible)
        if not any(matrix.form for matrix in self.matrices):
            return "model", "no matrix of the model would be quantised"
        if indivisible > PLAIN_SHARE * self.num_weights and not allow_plain:
            share = f"{indivisible / self.num_weights:.0%}"
            why = "their rows do not divide by the group size; allow_plain allows it"
            return "group", f"{share} of the weights would stay plain: {why}"
        least = min(matrix.form.bits for matrix in self.matrices if matrix.form)
        if is_pooled and least < 8 and not force:
            return "bits", "models of vectors and scores lose too much below 8 bits; force allows it"
        if least == 2 and not force and all(m.form is None or m.form.bits == 2 for m in self.matrices):
            return "bits", "2 bits everywhere leave little of a model: take a recipe, or force"
        if self.free_bytes is not None and self.free_bytes < self.num_bytes * 11 // 10:
            return "out", f"the disk has {self.free_bytes} bytes free, and {self.num_bytes * 11 // 10} are needed"
        return "", ""
