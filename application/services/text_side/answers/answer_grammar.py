"""The grammar that constrains a request's answer: the client's constraint in the call format of the model's family,
checked.

    tool_choice   asks for a grammar      constrained to
    none          yes                     the grammar
    required      any                     calls
    auto          yes                     the grammar, or calls in its place, where there are tools
    auto          no                      text with calls in it, where a tool is strict or has a grammar of its own, or
                                          only one call or some tools are allowed, if the family's calls can be
                                          distinguished from text

The family's reasoning may precede each of them, unless the client switched it off. A grammar is checked before the
request is submitted, so that an invalid one is an error then.
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
from domain.request.grammar import MAX_GRAMMAR_BYTES, Grammar
from domain.request.request import ChatPrompt, GenerationRequest

NUM_THREADS = 2
MAX_CHECKS = 64
"""Checks that may wait or run, and likewise grammars that are built."""

PARAM = "grammar"
"""The field's name in errors; dialects replace it by their own."""


class GrammarCheck:
    """Event loop only. `checker`: None for a server without structured output."""

    def __init__(self, checker: GrammarChecker | None = None) -> None:
        self._checker = checker
        self._lane = Lane("grammar check", NUM_THREADS, max_pending=MAX_CHECKS)
        self._writing = Lane("grammar writing", 1, max_pending=MAX_CHECKS)

    async def constrain(
        self, request: GenerationRequest, tokenizer: Tokenizer, model: ModelDescription, prompt_ids: Sequence[int]
    ) -> GenerationRequest:
        """Returns the request with the grammar of its answer (`with_answer_grammar`), checked. Tools' own grammars are
        left out where they make that impossible; the model still reads them in its prompt. Raises as
        `with_answer_grammar` does, InvalidRequest if the grammar cannot be enforced for the model, and
        ServerUnavailable while too many are being checked."""
        try:
            return await self._constrained(request, tokenizer, model, prompt_ids)
        except (InvalidRequest, ServerUnavailable):
            free = without_text_grammars(request)
            if free is None:
                raise
        constrained = await self._constrained(free, tokenizer, model, prompt_ids)
        return replace(constrained, prompt=request.prompt)

    async def _constrained(
        self, request: GenerationRequest, tokenizer: Tokenizer, model: ModelDescription, prompt_ids: Sequence[int]
    ) -> GenerationRequest:
        if may_need_calls(request):  # tens of milliseconds for a hundred tools
            constrained = await self._writing.run(with_answer_grammar, request, tokenizer, prompt_ids)
        else:
            constrained = with_answer_grammar(request, tokenizer, prompt_ids)
        if (grammar := constrained.grammar) is None:
            return constrained
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
        await self._lane.run(self._checker.check, grammar, tokenizer.vocab_size, special, PARAM, salt)
        return constrained

    def close(self) -> None:
        self._lane.close()
        self._writing.close()


def with_answer_grammar(
    request: GenerationRequest, tokenizer: Tokenizer, prompt_ids: Sequence[int]
) -> GenerationRequest:
    """Returns the request with the grammar of its answer. `prompt_ids`: its rendered prompt. Any thread.

    Raises InvalidRequest for a combination that the model's family cannot express."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return request
    grammar = _grammar(request.grammar, prompt, tokenizer)
    if grammar is None:
        return request
    if prompt.continues:
        if request.grammar is None and prompt.tool_choice.mode is CallMode.AUTO:
            return request  # an answer that was begun cannot be constrained
        raise InvalidRequest(
            "messages end with an answer to be continued, which cannot be combined with structured output or with"
            " a tool_choice other than auto",
            param="messages",
        )
    reasoning = tokenizer.reasoning_before(prompt_ids)
    wants_none = prompt.is_thinking_off or (request.reasoning is not None and request.reasoning.num_tokens == 0)
    if reasoning is not None and reasoning.is_needless and wants_none:
        reasoning = None
    return replace(request, grammar=grammar if reasoning is None else replace(grammar, reasoning=reasoning))


def may_need_calls(request: GenerationRequest) -> bool:
    """True if `with_answer_grammar` may build a grammar of calls, which takes long where tools are many or large."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt) or not prompt.callable_tools:
        return False
    if request.grammar is not None or prompt.tool_choice != ToolChoice():
        return True
    return any(tool.strict or tool.text_grammar is not None for tool in prompt.callable_tools)


def without_text_grammars(request: GenerationRequest) -> GenerationRequest | None:
    """Returns the request without its tools' own grammars; None where no tool has one."""
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
        tools = tuple(replace(tool, text_grammar=None) for tool in tools)  # too long to compile
    max_calls = 1 if choice.one_call else None
    if choice.mode is CallMode.REQUIRED:
        return _calls(written, tools, tokenizer, must_call=True, max_calls=max_calls)
    if grammar is not None:
        if not written.is_marked:
            _refuse("structured output needs tool_choice none or required, or no tools", tokenizer)
        calls = _calls(written, tools, tokenizer, must_call=True, max_calls=max_calls)
        return replace(grammar, calls=calls.text)
    if choice.names or choice.one_call or any(tool.strict or text_regex(tool) for tool in tools):
        if written.among_text and tokenizer.has_token_bytes:
            return _calls(written, tools, tokenizer, must_call=False, max_calls=max_calls)
        if choice.names:
            _refuse("tool_choice cannot name only some of the tools", tokenizer)
    return None


def _calls(
    written: WrittenCalls, tools: Sequence[ToolSpec], tokenizer: Tokenizer, *, must_call: bool, max_calls: int | None
) -> Grammar:
    return tool_call_grammar(written, tools, tokenizer.special_tokens, must_call=must_call, max_calls=max_calls)


def _refuse(what: str, tokenizer: Tokenizer) -> NoReturn:
    raise InvalidRequest(
        f"{what}: the tool-call format of this model, {tokenizer.output_format}, cannot be enforced by a grammar",
        param="tool_choice",
    )
