"""The Tokenizer port over a tokenizer of transformers. All methods but those of a Detokenizer: any thread."""

import re
from collections.abc import Callable, Sequence
from functools import partial

from adapters.tokenizers.chat_template import ChatTemplate
from adapters.tokenizers.control_tokens import ControlTokens
from adapters.tokenizers.detokenizer import IncrementalDetokenizer
from adapters.tokenizers.fork_points import find_fork_points
from adapters.tokenizers.jinja_template import RenderingTooLong
from adapters.tokenizers.text_codec import TextCodec
from application.ports.tokenizer import Detokenizer, EncodedPrompt, OutputParser, PromptTooLong
from application.ports.vision import ImageRows
from application.services.text_side.answers.choice import TokenParser
from domain.errors import TemplateFailed
from domain.id_row import IdRow
from domain.models.capability import PLAIN_USE, Capability, ModelUse
from domain.models.model_card import Vocabulary
from domain.output.output_format import OutputFormat, prepare_format
from domain.output.text_parser import TextParser
from domain.request.grammar import Reasoning
from domain.request.reasoning_budget import ReasoningMarks
from domain.request.request import ChatPrompt

_NUM_END_TOKENS = 64
"""More tokens than a template writes of the beginning of an answer."""


class HfTokenizer:
    """One model's tokenizer. `template` is None for a model without one, `token_bytes` where tokens have no bytes of
    their own. `output`: the format that its answers are parsed by. `note`: see the port. `controls`: keep the text of
    clients apart from control tokens; None where that is not possible. `use`: what the model is for.
    Raises ValueError if the vocabulary lacks the control tokens around its texts, or between a query and a document."""

    def __init__(
        self,
        codec: TextCodec,
        *,
        eos_token_ids: frozenset[int],
        template: ChatTemplate | None,
        token_bytes: Callable[[int], bytes] | None,
        output: OutputFormat,
        note: str = "",
        controls: ControlTokens | None = None,
        use: ModelUse = PLAIN_USE,
    ) -> None:
        self.note, self.vocab_size, self.eos_token_ids = note, codec.vocab_size, eos_token_ids
        self.max_token_chars = codec.max_token_chars
        self.special_tokens, self.has_token_bytes = codec.special_tokens, token_bytes is not None
        self.template_features = None if template is None else template.features
        self.output_format, self.written_calls = str(output), output.written_calls(self.special_tokens)
        self._codec = codec
        self._template = template
        self._token_bytes = token_bytes
        self._special_ids = frozenset(self.special_tokens.values())
        self._controls = controls
        self._start_ids, end_ids = codec.ends()
        for token in re.findall(r"<\|\w+\|>|</s>", use.start + use.end):
            if token not in codec.added_tokens:
                raise ValueError(f"the texts of this model need {token}, which is not one of its added tokens")
        start, end = (codec.encode(text) for text in (use.start, use.end))
        self.ends = (start, end) if start else (self._start_ids, end_ids or end)
        is_pair = use.is_encoder and Capability.SCORE in use.capabilities
        self.between = codec.between() if is_pair else IdRow()
        self._output = prepare_format(output, self.special_tokens)
        self._mark_of = {self.special_tokens[token]: mark for token, mark in self._output.marks.items()}

    def vocabulary(self) -> Vocabulary | None:
        if self._token_bytes is None:
            return None
        tokens = tuple(map(self._token_bytes, range(self.vocab_size)))
        return Vocabulary(tokens, {id: name for name, id in self.special_tokens.items()}, self.eos_token_ids)

    def encode(self, text: str, max_tokens: int | None = None, salt: str = "") -> EncodedPrompt:
        num_start = len(self._start_ids)
        room = None if max_tokens is None else max_tokens - num_start
        try:
            ids = self._codec.encode(text, max_tokens=room, owner=salt)
        except PromptTooLong as error:
            raise PromptTooLong(error.num_tokens + num_start, is_exact=error.is_exact) from None
        return EncodedPrompt.of_text(IdRow.joined((self._start_ids, ids)))

    def encode_part(self, text: str, salt: str = "") -> IdRow:
        if self._controls is None or not self._controls.are_spelled(text):
            return self._codec.encode(text, owner=salt)
        return self._controls.encode_text(text, owner=salt).ids

    def render(
        self, prompt: ChatPrompt, max_tokens: int | None = None, salt: str = "", images: ImageRows | None = None
    ) -> EncodedPrompt:
        if self._template is None:
            raise TemplateFailed(
                "this model has no chat template: use /v1/completions, or add a chat_template.jinja to its folder",
                param="messages",
            )
        placeholder = images.placeholder if images is not None else ""
        max_chars = None if max_tokens is None else max_tokens * self.max_token_chars
        try:
            rendered = self._template.render(prompt, max_chars, placeholder)
        except RenderingTooLong as error:
            raise PromptTooLong(-(-error.num_chars // self.max_token_chars), is_exact=False) from None
        encode = partial((rendered.controls or self._codec).encode_parts, owner=salt)
        encoded = encode(rendered.text, max_tokens=max_tokens)
        found = EncodedPrompt.of_text(encoded.ids, find_fork_points(prompt, self._template, encode, rendered, encoded))
        return found if images is None else self._with_images(found, images, prompt, max_tokens)

    def _with_images(
        self, encoded: EncodedPrompt, rows: ImageRows, prompt: ChatPrompt, max_tokens: int | None
    ) -> EncodedPrompt:
        images, id = prompt.images, self._codec.added_tokens.get(rows.placeholder, -1)
        try:
            found = rows.put_into(encoded, id, images)
        except ValueError as error:
            field = images[0].field or "messages"
            raise TemplateFailed(
                f"{field}: the model's chat template does not show each of {len(images)} images once ({error}); leave"
                f" out those in roles other than user, and texts that spell {rows.placeholder}",
                param=field,
            ) from None
        if max_tokens is not None and len(found.token_ids) > max_tokens:
            raise PromptTooLong(len(found.token_ids))
        return found

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(token_ids, skip_special=False)

    def detokenizer(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """Without `prompt_ids` the text is decoded as one of its own: the reply of a chat."""
        return IncrementalDetokenizer(self._decode_visible, self._special_ids, prompt_ids)

    def reasoning_before(self, prompt_ids: Sequence[int]) -> Reasoning | None:
        return self._output.output.reasoning_before(self._end_of(prompt_ids), self.special_tokens)

    def output_parser(
        self, prompt: ChatPrompt, prompt_ids: Sequence[int], new_call_id: Callable[[], str]
    ) -> OutputParser:
        parser = TextParser(
            self._output,
            new_call_id=new_call_id,
            tools=prompt.callable_tools,
            prompt_end=self._end_of(prompt_ids),
            prefilled=prompt.prefilled,
            taken_ids=[call.id for message in prompt.messages for call in message.tool_calls],
        )
        return TokenParser(self.detokenizer(prompt_ids if prompt.continues else ()), parser, self._mark_of)

    def reasoning_marks(self, prompt: ChatPrompt, prompt_ids: Sequence[int]) -> ReasoningMarks | None:
        output = self._output.output
        if (texts := output.reasoning_texts) is None:
            return None
        open_ids, end_ids = (tuple(self._codec.encode(text)) for text in texts)
        if not {open_ids[0], end_ids[0]} <= set(self._codec.added_tokens.values()):
            return None
        opening = output.opening(self._end_of(prompt_ids), prompt.prefilled)
        return ReasoningMarks(open_ids, end_ids, is_open=opening.startswith(texts[0]))

    def _end_of(self, prompt_ids: Sequence[int]) -> str:
        return self.decode(prompt_ids[-_NUM_END_TOKENS:])

    def _decode_visible(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(token_ids, skip_special=True)
