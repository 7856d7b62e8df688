"""The body of POST /v1/completions: one or many prompts, each text or token ids."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from domain.errors import InvalidRequest
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.request.request import TextPrompt, TokenPrompt
from interfaces.http.fields.parameters import mapped, supported
from interfaces.http.openai.completion_fields import MAX_CHOICES, CompletionFields

DEFAULT_MAX_TOKENS = 16
"""As OpenAI's text completions have it."""

PlainPrompt: TypeAlias = TextPrompt | TokenPrompt
WirePrompt: TypeAlias = str | Sequence[str | int | Sequence[int]]


class CompletionRequest(CompletionFields, kw_only=True):
    """Unknown fields are ignored unless they would change the answer; those are refused by name."""

    prompt: Annotated[WirePrompt, supported("a string, token ids, or a list of either")]
    echo: Annotated[bool | None, supported("the prompt before its completion; its `logprobs` too")] = None
    best_of: Annotated[int | None, mapped("only where it equals `n`")] = None
    logprobs: Annotated[int | None, supported("so many alternatives a token")] = None

    def __post_init__(self) -> None:
        """Ids as rows, where they are such: a body stays for as long as its request waits and is answered."""
        if self.prompt and not isinstance(self.prompt, str):
            row = _rowed(self.prompt)
            self.prompt = row or [item if isinstance(item, str | int) else _rowed(item) or item for item in self.prompt]


def plain_prompts(body: CompletionRequest) -> list[PlainPrompt]:
    """Every prompt of the body, in order. Raises InvalidRequest."""
    prompt = body.prompt
    if not isinstance(prompt, str | IdRow) and prompt and all(isinstance(item, int) for item in prompt):
        raise _no_token_id("prompt")
    num_prompts = 1 if isinstance(prompt, str | IdRow) else len(prompt)
    if not num_prompts:
        raise InvalidRequest("prompt must not be empty", param="prompt")
    if num_prompts * (body.n or 1) > MAX_CHOICES:
        raise InvalidRequest(f"prompts times n exceed {MAX_CHOICES}", param="n" if num_prompts == 1 else "prompt")
    return _prompts(prompt)


def check_combination(body: CompletionRequest) -> None:
    """Refuse what cannot be had together. Raises InvalidRequest."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("best_of is only supported when it equals n", param="best_of")


def num_prompt_logprobs(body: CompletionRequest) -> int | None:
    """How many alternatives to report a prompt token; None for no log probabilities of the prompt."""
    asked = (body.prompt_logprobs, body.logprobs if body.echo else None)
    return max((number for number in asked if number is not None), default=None)


def wire_names(body: CompletionRequest) -> dict[str, str]:
    """The client's names for fields that the domain calls otherwise, for `renamed`."""
    names = {"top_logprobs": "logprobs", **body.grammar_names}
    return names if body.prompt_logprobs is not None else {**names, "prompt_logprobs": "logprobs"}


def _rowed(items: Sequence[object]) -> IdRow | None:
    """None for what is no row of ids."""
    try:
        return IdRow(items)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _prompts(prompt: WirePrompt) -> list[PlainPrompt]:
    if isinstance(prompt, str):
        return [TextPrompt(prompt)]
    if isinstance(prompt, IdRow):
        return [TokenPrompt(prompt)]
    return [_prompt(item, f"prompt[{index}]") for index, item in enumerate(prompt)]


def _prompt(item: str | int | Sequence[int], field: str) -> PlainPrompt:
    if isinstance(item, str):
        return TextPrompt(item)
    if isinstance(item, int):
        raise InvalidRequest("prompt mixes token ids with other prompts", param=field)
    if not item or isinstance(item, IdRow):
        return TokenPrompt(IdRow(item))
    raise _no_token_id(field)


def _no_token_id(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field} holds a number that is no token id (0 to {MAX_TOKEN_ID})", param=field)
