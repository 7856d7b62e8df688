"""What is set for one model: a `[models."NAME"]` table of the configuration file.

Whatever a table leaves out is as `[model]` says for all. A table may also name a model of its own making: `base` is the
model whose files are served under NAME, with an `adapter` laid over them.
"""

from dataclasses import dataclass

from domain.duration import Duration
from domain.errors import require
from domain.request.sampling import SamplingDefaults

MIN_TTL_S, MAX_TTL_S = 1, 365 * 86_400


@dataclass(frozen=True, slots=True)
class ModelTable:
    """`context_length`, `dtype` and `idle_ttl`: as in `[model]`; None for what that says. `parser`: the family of
    output formats. `salt` keeps what is computed for this name apart from other names of the same weights. `pin`:
    loaded at the start, and never unloaded to make room. `base`: the model whose files these are, by default NAME
    itself; `adapter`: folder of a LoRA adapter over them. `sampling`: what requests have that do not say."""

    context_length: int | None = None
    dtype: str | None = None
    parser: str = ""
    salt: str = ""
    pin: bool = False
    idle_ttl: Duration | None = None
    base: str = ""
    adapter: str = ""
    sampling: SamplingDefaults = SamplingDefaults()

    def __post_init__(self) -> None:
        check_context(self.context_length, "context_length")
        check_ttl(self.idle_ttl, "idle_ttl")
        if self.dtype is not None:
            check_dtype(self.dtype, "dtype")
        require(not self.base or bool(self.adapter), "base", "needs an adapter: another name alone is server.aliases")


def check_dtype(dtype: str, name: str) -> None:
    allowed = {"auto", "float32", "bfloat16", "float16"}
    require(dtype in allowed, name, f"must be one of {', '.join(sorted(allowed))}")


def check_context(context_length: int | None, name: str) -> None:
    require(
        context_length is None or 2 <= context_length < 2**31,
        name,
        "must be at least 2 tokens: one of a prompt and one of an answer",
    )


def check_ttl(ttl: Duration | None, name: str) -> None:
    require(ttl is None or MIN_TTL_S <= ttl.num_seconds <= MAX_TTL_S, name, "must be in 1s..365d")


NOTHING_SET = ModelTable()
