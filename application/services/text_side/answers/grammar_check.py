"""A request's grammar, looked at before the request is submitted: what is wrong with it is an error then."""

from collections.abc import Sequence
from dataclasses import replace

from application.ports.token_constraint import GrammarChecker
from application.ports.tokenizer import Tokenizer
from application.services.lane import Lane
from application.services.text_side.answers.answer_grammar import (
    may_need_calls,
    with_answer_grammar,
    without_text_grammars,
)
from domain.errors import InvalidRequest, ServerUnavailable
from domain.models.model_card import ModelDescription
from domain.request.request import GenerationRequest

NUM_THREADS = 2
MAX_CHECKS = 64
"""Checks that may wait or run, and as many grammars that are written."""

PARAM = "grammar"
"""What errors call the field; a dialect has its own name for it."""


class GrammarCheck:
    """Event loop only. `checker`: None for a server that holds no answer to a grammar."""

    def __init__(self, checker: GrammarChecker | None = None) -> None:
        self._checker = checker
        self._lane = Lane("grammar check", NUM_THREADS, max_pending=MAX_CHECKS)
        self._writing = Lane("grammar writing", 1, max_pending=MAX_CHECKS)

    async def hold(
        self, request: GenerationRequest, tokenizer: Tokenizer, model: ModelDescription, prompt_ids: Sequence[int]
    ) -> GenerationRequest:
        """The request with the grammar of its answer (`with_answer_grammar`), which has been checked. What a tool's own
        grammar makes impossible is left to the model, which was told it. Raises as both do."""
        try:
            return await self._held(request, tokenizer, model, prompt_ids)
        except (InvalidRequest, ServerUnavailable):
            free = without_text_grammars(request)
            if free is None:
                raise
        held = await self._held(free, tokenizer, model, prompt_ids)
        return replace(held, prompt=request.prompt)

    async def _held(
        self, request: GenerationRequest, tokenizer: Tokenizer, model: ModelDescription, prompt_ids: Sequence[int]
    ) -> GenerationRequest:
        if may_need_calls(request):  # tens of milliseconds for a hundred tools
            held = await self._writing.run(with_answer_grammar, request, tokenizer, prompt_ids)
        else:
            held = with_answer_grammar(request, tokenizer, prompt_ids)
        await self.check(held, tokenizer, model)
        return held

    async def check(self, request: GenerationRequest, tokenizer: Tokenizer, model: ModelDescription) -> None:
        """Raises InvalidRequest if the model cannot be held to the request's grammar, ServerUnavailable if too many are
        being checked. Nothing to do for a request without one."""
        if request.grammar is None:
            return
        if self._checker is None:
            raise InvalidRequest(
                f"{PARAM} cannot be enforced: structured output is not enabled on this server", param=PARAM
            )
        if not tokenizer.has_token_bytes:
            raise InvalidRequest(
                f"{PARAM} cannot be enforced: the tokenizer of {model.id} has no byte representation",
                param=PARAM,
            )
        special, salt = tokenizer.special_tokens, request.cache_salt
        await self._lane.run(self._checker.check, request.grammar, tokenizer.vocab_size, special, PARAM, salt)

    def close(self) -> None:
        self._lane.close()
        self._writing.close()
