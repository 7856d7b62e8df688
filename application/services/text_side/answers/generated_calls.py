"""The generated text of tool calls, kept by call id, so that later prompts render it exactly as the model wrote it.

A call is kept once the model has finished it, under its owner (`cache_salt`), so that no prompt gets another owner's
text. Calls are bounded, aged and cleared with the documents; those of a request that may not be stored stay in memory.
A call that cannot be looked up in time is rendered as the client sent it: that costs computing, but no error.
"""

import json
from dataclasses import asdict, replace

from application.services.documents import Documents
from domain.errors import StoreUnresponsive
from domain.request.chat import GeneratedCall, with_generated
from domain.request.document import Document, DocumentKey
from domain.request.request import ChatPrompt, GenerationRequest

KIND = "tool_call"

MAX_CHARS = 1 << 20
"""The bound on arguments and reasoning; a longer call is not kept."""

MAX_CALLS = 4096
"""The number of calls that are looked up for one prompt: its first ones, so that the beginning of a growing prompt
stays the same."""

RECALL_TIMEOUT_S = 2.0


class GeneratedCalls:
    """Event loop only. `documents`: None keeps nothing, and prompts are rendered as they were sent."""

    def __init__(self, documents: Documents | None = None) -> None:
        self._documents = documents

    async def recalled(self, request: GenerationRequest) -> GenerationRequest:
        """Returns the request with its known calls as they were generated."""
        prompt = request.prompt
        if self._documents is None or not isinstance(prompt, ChatPrompt):
            return request
        ids = list(dict.fromkeys(call.id for message in prompt.messages for call in message.tool_calls))[:MAX_CALLS]
        if not ids:
            return request
        keys = [self._key(request, id) for id in ids]
        try:
            found = await self._documents.find(keys, RECALL_TIMEOUT_S)
        except StoreUnresponsive:
            return request
        known = {id: _read(document) for id, document in zip(ids, found, strict=False) if document is not None}
        messages = tuple(with_generated(message, known) for message in prompt.messages)
        return replace(request, prompt=replace(prompt, messages=messages))

    def keep(self, request: GenerationRequest, id: str, call: GeneratedCall) -> None:
        """Keeps a finished call of an answer under its id, where calls of this request are kept."""
        num_chars = len(call.arguments) + len(call.reasoning)
        if self._documents is not None and request.persist and num_chars <= MAX_CHARS:
            bodies, arrived_ns = {self._key(request, id): json.dumps(asdict(call)).encode()}, request.arrived_ns or 0
            self._documents.keep(bodies, request.model, arrived_ns, is_fleeting=not request.keeps_text)

    def _key(self, request: GenerationRequest, id: str) -> DocumentKey:
        assert self._documents is not None
        return DocumentKey(self._documents.owner(request.cache_salt), KIND, id)


def _read(document: Document) -> GeneratedCall:
    return GeneratedCall(**json.loads(document.body))
