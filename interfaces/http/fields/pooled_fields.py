"""The fields and values of bodies for vectors and scores, in every dialect."""

import struct
from base64 import b64encode
from typing import Annotated, Any

import msgspec
from msgspec import Raw, Struct

from application.use_cases.embed import PooledTexts
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import ignored, mapped, refuse_unsupported, supported
from interfaces.http.fields.sampling_fields import new_request, tier_priority
from interfaces.http.incoming.request_context import RequestContext


class PooledFields(Struct, kw_only=True):
    """The fields of every body for vectors or scores. Null and absent mean the same for every field."""

    model: Annotated[str | None, supported("without it, the default model answers")] = None
    service_tier: Annotated[str | None, mapped("`flex`: others go first")] = None
    store: Annotated[
        bool | None, supported("Cairn's own: true keeps what is computed for this request in the store as well")
    ] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None
    user: Annotated[Any, ignored("keys distinguish clients")] = None

    @property
    def speculation(self) -> bool | None:
        """Nothing is drafted."""
        return None

    def request(self, context: RequestContext, prefix: str, prompt: PooledPrompt, **fields: Any) -> GenerationRequest:
        """Returns the request of a body: see `new_request`. Raises InvalidRequest."""
        refuse_unsupported(self)
        common: dict[str, Any] = {"persist": self.store is True, "priority": tier_priority(self.service_tier)}
        return new_request(self, context, prefix, prompt, **common, **fields)


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


def as_base64(value: bytes) -> Any:
    """Returns a vector as a string: its bytes in base64."""
    return b64encode(value).decode()
