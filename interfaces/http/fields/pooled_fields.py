"""The fields and values of bodies for vectors and scores, in every dialect."""

import struct
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from application.use_cases.embed import PooledTexts
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import ignored, mapped, refuse_unsupported, supported
from interfaces.http.fields.sampling_fields import new_request, tier_priority
from interfaces.http.incoming.request_context import RequestContext

Dimensions: TypeAlias = Annotated[
    int | None, supported("the first numbers of each vector, normalised again, where the model was trained for it")
]
Truncation: TypeAlias = Annotated[
    Literal[-1] | None, mapped("-1: a text beyond the model's context is cut at its end, not refused")
]


class PooledFields(Struct, kw_only=True):
    """The fields of every body for vectors or scores. Null and absent mean the same for every field. `prefix`: of the
    request's id."""

    prefix: ClassVar[str]

    model: Annotated[str | None, supported("without it, the default model answers")] = None
    service_tier: Annotated[str | None, mapped("`flex`: others go first")] = None
    store: Annotated[
        bool | None, supported("Cairn's own: true keeps what is computed for this request in the store as well")
    ] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    user: Annotated[Any, ignored("keys distinguish clients")] = None

    def prompt(self) -> PooledPrompt:
        """Returns the texts. Raises InvalidRequest."""
        raise NotImplementedError

    @property
    def speculation(self) -> bool | None:
        """Nothing is drafted."""
        return None

    def request(self, context: RequestContext) -> GenerationRequest:
        """Returns the request: see `new_request`. Raises InvalidRequest."""
        refuse_unsupported(self)
        priority = tier_priority(self.service_tier)
        return new_request(self, context, self.prefix, self.prompt(), persist=self.store is True, priority=priority)


class PooledDetails(Struct):
    """The reuse of texts. `cached_tokens`: those that were kept, or that several texts of a request have in common."""

    cached_tokens: int


class PooledUsage(Struct):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PooledDetails

    @classmethod
    def of(cls, pooled: PooledTexts) -> "PooledUsage":
        return cls(pooled.num_tokens, pooled.num_tokens, PooledDetails(pooled.num_cached))


def numbers(value: bytes) -> tuple[float, ...]:
    """Returns the numbers of a vector."""
    return struct.unpack(f"<{len(value) // 4}f", value)


def as_json(value: bytes) -> Any:
    """Returns a vector as a JSON array of numbers, encoded already: a list of them would be many times as large."""
    return Raw(msgspec.json.encode(numbers(value)))
