"""The grammar that a request's answer is held to: what the client asked for, in the words of the model's family.

    tool_choice   asks for a grammar      held to
    none          yes                     the grammar
    required      any                     calls
    auto          yes                     the grammar, or calls in its place, where there are tools
    auto          no                      text with calls in it, where a tool is strict or has a grammar of its own, or
                                          one call or some tools are all that is wanted, as far as the family's calls
                                          can be told from text

Before all of them may stand the family's reasoning, where the client did not ask for none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from application.ports.token_constraint import GrammarChecker
from application.ports.tokenizer import Tokenizer
from application.services.lane import Lane
from domain.call_grammar.text_grammar import text_regex
from domain.call_grammar.tool_grammar import tool_call_grammar
from domain.errors import InvalidRequest, ServerUnavailable
from domain.models.model_card import ModelDescription
from domain.output.family import WrittenCalls
from domain.request.chat import CallMode, ToolChoice, ToolSpec
from domain.request.grammar import MAX_GRAMMAR_BYTES, Grammar, after_reasoning, or_calls
from domain.request.request import ChatPrompt, GenerationRequest

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


def with_answer_grammar(
    request: GenerationRequest, tokenizer: Tokenizer, prompt_ids: Sequence[int]
) -> GenerationRequest:
    """The same request with this grammar. `prompt_ids`: what its prompt was rendered to. Any thread.

    Raises InvalidRequest for what the model's family has no form for."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return request
    grammar = _grammar(request.grammar, prompt, tokenizer)
    if grammar is None:
        return request
    if prompt.continues:
        if request.grammar is None and prompt.tool_choice.mode is CallMode.AUTO:
            return request  # what was begun cannot be held to anything
        raise InvalidRequest("an answer that was begun can neither be given a form nor be a call", param="messages")
    reasoning = tokenizer.reasoning_before(prompt_ids)
    wants_none = prompt.is_thinking_off or (request.reasoning is not None and request.reasoning.num_tokens == 0)
    if reasoning is not None and reasoning.is_needless and wants_none:
        reasoning = None
    return replace(request, grammar=grammar if reasoning is None else after_reasoning(grammar, reasoning))


def may_need_calls(request: GenerationRequest) -> bool:
    """Whether `with_answer_grammar` may have to tell calls, which takes long where tools are many or large."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or not prompt.callable_tools:
        return False
    if request.grammar is not None or prompt.tool_choice != ToolChoice():
        return True
    return any(tool.strict or tool.text_grammar is not None for tool in prompt.callable_tools)


def without_text_grammars(request: GenerationRequest) -> GenerationRequest | None:
    """The same request, its tools' texts free; None where they are."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or not any(tool.text_grammar for tool in prompt.callable_tools):
        return None
    tools = tuple(replace(tool, text_grammar=None) for tool in prompt.tools)
    return replace(request, prompt=replace(prompt, tools=tools))


def _grammar(grammar: Grammar | None, prompt: ChatPrompt, tokenizer: Tokenizer) -> Grammar | None:
    choice, written = prompt.tool_choice, tokenizer.written_calls
    tools = tuple(tool for tool in prompt.callable_tools if tool.name in choice.names or not choice.names)
    if not tools:
        return grammar
    if sum(len(tool.text_grammar.definition) for tool in tools if tool.text_grammar) > MAX_GRAMMAR_BYTES:
        tools = tuple(replace(tool, text_grammar=None) for tool in tools)  # free: reading them all would take long
    max_calls = 1 if choice.one_call else None
    if choice.mode is CallMode.REQUIRED:
        return _calls(written, tools, tokenizer, must_call=True, max_calls=max_calls)
    if grammar is not None:
        if not written.is_marked:
            _refuse("an answer in a given form needs tool_choice none or required, or no tools", tokenizer)
        return or_calls(grammar, _calls(written, tools, tokenizer, must_call=True, max_calls=max_calls))
    if choice.names or choice.one_call or any(tool.strict or text_regex(tool) for tool in tools):
        if written.among_text and tokenizer.has_token_bytes:
            return _calls(written, tools, tokenizer, must_call=False, max_calls=max_calls)
        if choice.names:
            _refuse("tool_choice cannot leave tools out", tokenizer)
    return None


def _calls(
    written: WrittenCalls, tools: Sequence[ToolSpec], tokenizer: Tokenizer, *, must_call: bool, max_calls: int | None
) -> Grammar:
    return tool_call_grammar(written, tools, tokenizer.special_tokens, must_call=must_call, max_calls=max_calls)


def _refuse(what: str, tokenizer: Tokenizer) -> NoReturn:
    raise InvalidRequest(
        f"{what}: no grammar holds this model's form of calls, {tokenizer.output_format}", param="tool_choice"
    )
