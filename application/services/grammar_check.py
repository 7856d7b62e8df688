"""A request's grammar, looked at before the request is submitted: what is wrong with it is an error then."""

from application.ports.token_constraint import GrammarChecker
from application.ports.tokenizer import Tokenizer
from application.services.workers import Workers
from domain.errors import InvalidRequest
from domain.model_card import ModelDescription
from domain.request import GenerationRequest

NUM_WORKERS = 2
PARAM = "grammar"
"""What errors call the field; a dialect has its own name for it."""


class GrammarCheck:
    """Event loop only. `checker`: None for a server that holds no answer to a grammar."""

    def __init__(self, checker: GrammarChecker | None = None) -> None:
        self._checker = checker
        self._workers = Workers("grammar check", NUM_WORKERS)

    async def check(self, request: GenerationRequest, tokenizer: Tokenizer, model: ModelDescription) -> None:
        """Raises InvalidRequest if the model cannot be held to the request's grammar, ServerUnavailable if too many are
        being checked. Nothing to do for a request without one."""
        if request.grammar is None:
            return
        if self._checker is None:
            raise InvalidRequest("this server holds no answer to a grammar", param=PARAM)
        if not tokenizer.has_token_bytes:
            raise InvalidRequest(f"the tokenizer of {model.id} does not say what its tokens spell", param=PARAM)
        special = tokenizer.special_tokens
        await self._workers.run(self._checker.check, request.grammar, tokenizer.vocab_size, special, PARAM)

    def close(self) -> None:
        self._workers.close()


__all__ = ("GrammarCheck",)
