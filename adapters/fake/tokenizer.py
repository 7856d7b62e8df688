"""A byte-level tokenizer: one token a UTF-8 byte, and a few specials for a ChatML-like template.

    <|start|>system\n...<|end|>\n<|start|>user\n...<|end|>\n<|start|>assistant\n<think>\n...</think>\n...
    <call>name {}</call>

Special tokens come from the template only: user text that spells them stays bytes. Like many real templates, it drops
the reasoning of assistant turns before the last user message. Later system messages are rendered as a user's.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from adapters.fake.options import EOS_ID, PAD_ID, VOCAB_SIZE
from application.ports.tokenizer import (
    Detokenizer,
    EncodedPrompt,
    ForkKind,
    ForkPoint,
    OutputParser,
    PromptTooLong,
    TemplateFeatures,
    Tokenizer,
    check_length,
)
from application.ports.vision import ImageRows
from application.services.text_side.answers.choice import TokenParser
from domain.errors import TemplateFailed
from domain.id_row import IdRow
from domain.models.model_card import ModelSource, Vocabulary
from domain.output.family import Family, ReasoningTags, Section, WrittenCalls
from domain.output.json_calls import NamedCalls
from domain.output.output_format import OutputFormat, prepare_format
from domain.output.text_parser import TextParser
from domain.request.chat import SYSTEM_ROLES, ChatMessage, Role, ToolSpec, late_system_as_user
from domain.request.grammar import Reasoning
from domain.request.reasoning_budget import ReasoningMarks
from domain.request.request import ChatPrompt

START_ID = 257
SPECIALS = {256: "<|begin|>", START_ID: "<|start|>", EOS_ID: "<|end|>", PAD_ID: "<|pad|>"}
_OUTPUT = OutputFormat(
    Family(
        "fake",
        "<call>NAME JSON",
        sections=(Section("<call>", "</call>", (NamedCalls(re.compile(r"(?P<name>\S+)")),)),),
        writes=(WrittenCalls(mark="<call>", before_arguments=" ", closing="</call>"),),
    ),
    ReasoningTags("<think>", "</think>"),
    "as the fake tokenizer renders it",
)
_TURN_END = (EOS_ID, 10)
_PROBE = ChatMessage(Role.ASSISTANT, content="\x01"), ChatMessage(Role.USER, content="\x02")


class FakeDetokenizer:
    """A Detokenizer: bytes to text as characters complete, without special tokens."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(bytes((token_id,))) if token_id < 256 else ""

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class FakeTokenizer:
    """A Tokenizer. `thinks`: the generation prompt opens a reasoning block. `reasons`: the end marker of reasoning is
    known."""

    def __init__(self, *, thinks: bool = False, reasons: bool = True, has_chat_template: bool = True) -> None:
        self._thinks = thinks
        self._reasons = reasons
        self._has_chat_template = has_chat_template

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset({EOS_ID})

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return {name: id for id, name in SPECIALS.items()}

    @property
    def has_token_bytes(self) -> bool:
        return True

    def vocabulary(self) -> Vocabulary | None:
        return fake_vocabulary()

    @property
    def note(self) -> str:
        return ""

    def encode(self, text: str, max_tokens: int | None = None, salt: str = "") -> EncodedPrompt:
        check_length(len(text), self.max_token_chars, max_tokens)
        token_ids = tuple(text.encode("utf-8", errors="replace"))
        _check_count(token_ids, max_tokens)
        return EncodedPrompt.of_text(token_ids)

    ends, between, max_token_chars = (IdRow(), IdRow()), IdRow(), 1

    def encode_part(self, text: str, salt: str = "") -> IdRow:
        return IdRow(text.encode("utf-8", errors="replace"))

    def render(
        self, prompt: ChatPrompt, max_tokens: int | None = None, salt: str = "", images: ImageRows | None = None
    ) -> EncodedPrompt:
        if not self._has_chat_template:
            raise TemplateFailed("this model has no chat template", param="messages")
        prompt = replace(prompt, messages=tuple(late_system_as_user(prompt.messages)))
        turns = self._turns(prompt.messages, prompt.tools)
        rendered = [token for turn in turns for token in turn]
        if prompt.continues:
            token_ids = tuple(rendered[: -len(_TURN_END)])
        else:
            opening = "assistant\n<think>\n" if self._opens_reasoning(prompt) else "assistant\n"
            token_ids = (*rendered, START_ID, *opening.encode())
        encoded = EncodedPrompt.of_text(token_ids, self._fork_points(prompt, turns, token_ids))
        if images is not None:
            encoded = images.put_into(encoded, PAD_ID, prompt.images)
        _check_count(encoded.token_ids, max_tokens)
        return encoded

    def decode(self, token_ids: Sequence[int]) -> str:
        text: list[str] = []
        run = bytearray()
        for token in token_ids:
            if token < 256:
                run.append(token)
            else:
                text += (run.decode("utf-8", errors="replace"), SPECIALS.get(token, f"<|{token}|>"))
                run.clear()
        return "".join(text) + run.decode("utf-8", errors="replace")

    def detokenizer(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        return FakeDetokenizer()

    @property
    def output_format(self) -> str:
        return str(_OUTPUT)

    @property
    def written_calls(self) -> WrittenCalls:
        return _OUTPUT.written_calls(self.special_tokens)

    def reasoning_before(self, prompt_ids: Sequence[int]) -> Reasoning | None:
        end = self.decode(prompt_ids[-64:])  # toys reason only if the prompt opened a block
        return _OUTPUT.reasoning_before(end, self.special_tokens) if _OUTPUT.opening(end) else None

    def output_parser(
        self, prompt: ChatPrompt, prompt_ids: Sequence[int], new_call_id: Callable[[], str]
    ) -> OutputParser:
        parser = TextParser(
            prepare_format(_OUTPUT),
            new_call_id=new_call_id,
            tools=prompt.callable_tools,
            prompt_end=self.decode(prompt_ids[-64:]),
            prefilled=prompt.prefilled,
            taken_ids=[call.id for message in prompt.messages for call in message.tool_calls],
        )
        return TokenParser(FakeDetokenizer(), parser, {})

    @property
    def template_features(self) -> TemplateFeatures | None:
        features = TemplateFeatures(tools=True, reasoning=True, late_system=False, source="{{ messages }}")
        return features if self._has_chat_template else None

    def reasoning_marks(self, prompt: ChatPrompt, prompt_ids: Sequence[int]) -> ReasoningMarks | None:
        texts = _OUTPUT.reasoning_texts
        if texts is None or not self._reasons:
            return None
        opening = _OUTPUT.opening(self.decode(prompt_ids[-64:]), prompt.prefilled)
        open_ids, end_ids = (tuple(text.encode()) for text in texts)
        return ReasoningMarks(open_ids, end_ids, is_open=opening.startswith(texts[0]))

    def _opens_reasoning(self, prompt: ChatPrompt) -> bool:
        return bool(prompt.template_kwargs.get("enable_thinking", self._thinks))

    def _turns(self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]) -> list[tuple[int, ...]]:
        """The tokens of each message; tools are rendered into a system turn of their own."""
        turns: list[tuple[int, ...]] = []
        if tools:
            listing = "\n".join(
                json.dumps({"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)})
                for tool in tools
            )
            turns.append(_turn("tools", _bytes(listing)))
        last_user = max((at for at, message in enumerate(messages) if message.role is Role.USER), default=-1)
        for at, message in enumerate(messages):
            turns.append(_turn(message.role.value, _body(message, keeps_reasoning=at > last_user)))
        return turns

    def _fork_points(
        self, prompt: ChatPrompt, turns: list[tuple[int, ...]], token_ids: tuple[int, ...]
    ) -> tuple[ForkPoint, ...]:
        messages = prompt.messages
        found: dict[int, ForkKind] = {}
        first_message = len(turns) - len(messages)
        at = 0
        for number, turn in enumerate(turns):
            at += len(turn)
            index = number - first_message
            leads = index < 0 or messages[index].role in SYSTEM_ROLES
            follows = index + 1 < len(messages) and messages[index + 1].role in SYSTEM_ROLES
            if leads and not follows:
                found[at] = ForkKind.SYSTEM_END
            elif not leads:
                found[at] = ForkKind.TURN
        probe = [token for turn in self._turns((*messages, *_PROBE), prompt.tools) for token in turn]
        shared = next((i for i, (a, b) in enumerate(zip(token_ids, probe, strict=False)) if a != b), len(token_ids))
        if shared:
            found[shared] = ForkKind.NEXT_TURN
        return tuple(ForkPoint(position, found[position]) for position in sorted(found))


def _turn(role: str, body: Sequence[int]) -> tuple[int, ...]:
    return (START_ID, *_bytes(f"{role}\n"), *body, *_TURN_END)


def _body(message: ChatMessage, *, keeps_reasoning: bool) -> list[int]:
    body: list[int] = []
    if message.reasoning and keeps_reasoning:
        body += _bytes(f"<think>\n{message.reasoning}\n</think>\n")
    for piece in message.for_model.pieces:
        body += _bytes(piece) if isinstance(piece, str) else (PAD_ID,)
    for call in message.tool_calls:
        body += _bytes(f"\n<call>{call.name} {call.arguments}</call>")
    return body


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _check_count(token_ids: Sequence[int], max_tokens: int | None) -> None:
    if max_tokens is not None and len(token_ids) > max_tokens:
        raise PromptTooLong(len(token_ids))


def fake_vocabulary() -> Vocabulary:
    """The vocabulary of every toy model."""
    tokens = (*(bytes([byte]) for byte in range(256)), *(b"" for _ in SPECIALS))
    return Vocabulary(tokens, SPECIALS, frozenset({EOS_ID}))


class FakeTokenizers:
    """A TokenizerLoader with one tokenizer for all models."""

    def __init__(self, tokenizer: FakeTokenizer | None = None) -> None:
        self._tokenizer = tokenizer or FakeTokenizer()

    def load(self, source: ModelSource) -> Tokenizer:
        return self._tokenizer
