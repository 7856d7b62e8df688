"""Token counts of an HTTP request: each prompt once, however many choices were drawn from it."""

from collections.abc import Sequence

from msgspec import Struct

from domain.request.request import Usage


class PromptTokensDetails(Struct):
    """`cached_tokens`: prompt tokens that were reused and not computed."""

    cached_tokens: int


class UsageBody(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_body(usages: Sequence[Usage], choices_per_prompt: int) -> UsageBody:
    """`usages` in order of choice index."""
    of_prompts = usages[::choices_per_prompt]
    prompt_tokens = sum(usage.prompt_tokens for usage in of_prompts)
    completion_tokens = sum(usage.completion_tokens for usage in usages)
    cached = PromptTokensDetails(sum(usage.reused_tokens for usage in of_prompts))
    return UsageBody(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens, cached)
