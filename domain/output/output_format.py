"""The output format of one model: the family of its calls and the tags of its reasoning, found in its chat template and
among its added tokens, or set by the user."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from domain.errors import InvalidRequest
from domain.output.families import FAMILIES, REASONING
from domain.output.family import Family, ReasoningTags, WrittenCalls, marks_for, with_marks
from domain.request.grammar import Reasoning, pieces

_MIN_TOKEN_CHARS = 5
_TAIL_CHARS = 256
_PREFILLED = "x"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A family and its reasoning tags. `found_in`: the source from which the family is known."""

    family: Family
    reasoning: ReasoningTags | None
    found_in: str

    def __str__(self) -> str:
        """A line for people: the parser, and the source from which it was chosen."""
        if self.family.channels is not None:
            return f"{self.family.name} ({self.family.shows}; {self.found_in})"
        reasoning = f"{self.reasoning.open}...{self.reasoning.close}" if self.reasoning else "none"
        return f"{self.family.name} ({self.family.shows}; {self.found_in}), reasoning: {reasoning}"

    def written_calls(self, special_tokens: Container[str]) -> WrittenCalls:
        """Returns the form of calls of models with these special tokens."""
        return next(one for one in self.family.writes if not one.needs or one.needs in special_tokens)

    def reasoning_before(self, prompt_end: str, special_tokens: Mapping[str, int]) -> Reasoning | None:
        """Returns the reasoning that may stand before an answer to such a prompt; None for none."""
        channels, tags = self.family.channels, self.reasoning
        if channels is not None:
            opened = [f"{channels.channel}{name}{channels.message}" for name in ("analysis", "final")]
            texts = (f"{channels.ends[0]}{channels.start}assistant", *opened)
        elif tags is None or prompt_end.rstrip().endswith(tags.close):
            return None
        else:
            texts = (tags.close, "" if self.opening(prompt_end) else tags.open, "")
        return Reasoning(*(pieces(text, special_tokens) for text in texts))

    @property
    def reasoning_texts(self) -> tuple[str, str] | None:
        """The texts that open and end reasoning; None where there are none."""
        if (channels := self.family.channels) is not None:
            return f"{channels.channel}analysis{channels.message}", channels.ends[0]
        return None if self.reasoning is None else (self.reasoning.open, self.reasoning.close)

    def opening(self, prompt_end: str, prefilled: str = "") -> str:
        """Returns the tag or header that the prompt's end opens, which belongs to the answer. `prefilled`: the text
        with which the prompt begins the answer; a letter stands for it, so that the answer continues it."""
        channels, end = self.family.channels, prompt_end[-_TAIL_CHARS:]
        if prefilled:
            return self._opened_before(prefilled) + _PREFILLED
        if channels is not None:
            _, channel, header = end.rpartition(channels.start)[2].partition(channels.channel)
            return channel + header
        if self.reasoning is not None and end.rstrip().endswith(self.reasoning.open):
            return self.reasoning.open
        return ""

    def _opened_before(self, prefilled: str) -> str:
        if (channels := self.family.channels) is not None:
            return f"{channels.channel}final{channels.message}"
        tags = self.reasoning
        reasons = tags is not None and prefilled.lstrip().startswith(tags.open) and tags.close not in prefilled
        return tags.open if tags is not None and reasons else ""


@dataclass(frozen=True, slots=True)
class PreparedFormat:
    """A format for one tokenizer: its markers that are special tokens are the characters that stand for them, in
    `marks` by what the tokens spell."""

    output: OutputFormat
    family: Family
    reasoning: ReasoningTags | None
    marks: Mapping[str, str]

    @property
    def spellings(self) -> Mapping[str, str]:
        return {mark: token for token, mark in self.marks.items()}

    def opening(self, prompt_end: str, prefilled: str = "") -> str:
        return with_marks(self.output.opening(prompt_end, prefilled), self.marks)


def prepare_format(output: OutputFormat, special_tokens: Iterable[str] = ()) -> PreparedFormat:
    marks = marks_for((output.family, output.reasoning), special_tokens)
    family, reasoning = with_marks((output.family, output.reasoning), marks)
    return PreparedFormat(output, family, reasoning, marks)


def choose_format(template: str, added_tokens: Iterable[str], *, family: Family | None = None) -> OutputFormat:
    """Returns the format of a model. `family`: the one to use, whatever is found. The default is bare JSON."""
    tokens = frozenset(added_tokens)
    reasoning = next((tags for tags in REASONING if _has_tags(tags, template, tokens)), None)
    if family is not None:
        return OutputFormat(family, reasoning, "as set")
    places: tuple[tuple[Container[str], str], ...] = ((template, "chat template"), (tokens, "added tokens"))
    for place, called in places:
        for one in FAMILIES:
            if any(all(text in place for text in texts) for texts in one.found_by):
                return OutputFormat(one, reasoning, f"from its {called}")
    return OutputFormat(FAMILIES[-1], reasoning, "by default")


def family_named(name: str) -> Family:
    """Returns a family. Raises InvalidRequest, listing the known ones, for an unknown name."""
    for family in FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(sorted(family.name for family in FAMILIES))
    raise InvalidRequest(f"model.parsers names an unknown parser, {name!r}; use one of {known}", param="model.parsers")


def _has_tags(tags: ReasoningTags, template: str, tokens: frozenset[str]) -> bool:
    return all(_has(tag, template, tokens) for tag in (tags.open, tags.close, *tags.dropped))


def _has(tag: str, template: str, tokens: frozenset[str]) -> bool:
    """Returns True if a template or tokens have a tag; a token may be its beginning: `<|channel>` of
    `<|channel>thought`."""
    return tag in template or any(len(token) >= _MIN_TOKEN_CHARS and tag.startswith(token) for token in tokens)
