"""The grammar that a request's answer is held to: what the client asked for, in the words of the model's family.

    tool_choice   asks for a grammar      held to
    none          yes                     the grammar
    required      any                     calls
    auto          yes                     the grammar, or calls in its place, where there are tools
    auto          no                      text with calls in it, where a tool is strict or one call or some tools are
                                          all that is wanted, as far as the family's calls can be told from text

Before all of them may stand the family's reasoning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from application.ports.tokenizer import Tokenizer
from domain.chat import ToolSpec
from domain.errors import InvalidRequest
from domain.grammar import Grammar, after_reasoning, or_calls
from domain.output.written_calls import WrittenCalls
from domain.request import ChatPrompt, GenerationRequest
from domain.tool_choice import CallMode
from domain.tool_grammar import tool_call_grammar


@dataclass(frozen=True, slots=True)
class AnswerGrammar:
    """`param`: the field it comes from."""

    grammar: Grammar
    param: str


def answer_grammar(request: GenerationRequest, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> AnswerGrammar | None:
    """None where the answer is free. `prompt_ids`: what the prompt was rendered to.

    Raises InvalidRequest for what the model's family has no form for."""
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        return None if request.grammar is None else AnswerGrammar(request.grammar, "grammar")
    found = _found(request.grammar, prompt, tokenizer)
    if found is None:
        return None
    if request.stop.ignore_eos:
        raise InvalidRequest("ignore_eos and a grammar exclude each other: a complete answer ends", param="ignore_eos")
    reasoning = tokenizer.reasoning_before(prompt_ids)
    if reasoning is None:
        return found
    return AnswerGrammar(after_reasoning(found.grammar, reasoning), found.param)


def _found(grammar: Grammar | None, prompt: ChatPrompt, tokenizer: Tokenizer) -> AnswerGrammar | None:
    choice, written = prompt.tool_choice, tokenizer.written_calls
    tools = tuple(tool for tool in prompt.callable_tools if tool.name in choice.names or not choice.names)
    if not tools:
        return None if grammar is None else AnswerGrammar(grammar, "grammar")
    if choice.mode is CallMode.REQUIRED:
        return _calls(prompt, tools, _writable(written, tokenizer), tokenizer, must_call=True)
    if grammar is not None:
        if written is None or not written.is_marked:
            raise InvalidRequest(
                f"an answer in a given form excludes tools that may be called: this model's calls"
                f" ({tokenizer.output_format}) cannot be held apart from it; leave out one of them, or set tool_choice",
                param="tool_choice",
            )
        calls = _calls(prompt, tools, written, tokenizer, must_call=True)
        return AnswerGrammar(or_calls(grammar, calls.grammar), "grammar")
    if choice.names or choice.one_call or any(tool.strict for tool in tools):
        if written is not None and written.among_text and tokenizer.has_token_bytes:
            return _calls(prompt, tools, written, tokenizer, must_call=False)
        if choice.names:
            _refuse(tokenizer)
    return None


def _calls(
    prompt: ChatPrompt, tools: tuple[ToolSpec, ...], written: WrittenCalls, tokenizer: Tokenizer, *, must_call: bool
) -> AnswerGrammar:
    max_calls = 1 if prompt.tool_choice.one_call else None
    special = tokenizer.special_tokens
    grammar = tool_call_grammar(written, tools, special, must_call=must_call, max_calls=max_calls)
    return AnswerGrammar(grammar, "tools")


def _writable(written: WrittenCalls | None, tokenizer: Tokenizer) -> WrittenCalls:
    if written is None:
        _refuse(tokenizer)
    return written


def _refuse(tokenizer: Tokenizer) -> NoReturn:
    raise InvalidRequest(
        f"tool_choice can only be auto or none: this model's calls ({tokenizer.output_format}) cannot be forced",
        param="tool_choice",
    )


__all__ = ("AnswerGrammar", "answer_grammar")
