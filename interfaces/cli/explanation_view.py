"""What a server explained, laid out for a terminal. Text of prompts is shown as it is told: never as control codes."""

from collections.abc import Sequence
from typing import TypedDict

from rich.console import Console
from rich.text import Text

from domain.explanation import CONTEXT_TOKENS

NOT_SHOWN = "not shown: cache.show_text is off (auto: shown only by a server on loopback without a key)"


class DivergenceView(TypedDict):
    position: int
    before: str
    prompt: str
    stored: str | None


class ForkView(TypedDict):
    position: int
    kind: str


class PromptView(TypedDict):
    """Of one prompt, as POST /v1/cache/explain has it."""

    prompt_tokens: int
    live_tokens: int
    hot_tokens: int
    store_tokens: int
    computed_tokens: int
    stopped_at: int
    reason: str
    sentence: str
    divergence: DivergenceView | None
    nearest_fork: ForkView | None
    rewrites: list[str]


def show_explanation(console: Console, model: str, prompts: Sequence[PromptView]) -> None:
    for number, prompt in enumerate(prompts, 1):
        name = f"{printable(model)}, prompt {number} of {len(prompts)}" if len(prompts) > 1 else printable(model)
        _show_prompt(console, name, prompt)


def printable(text: str) -> str:
    """`text` on one line, with everything that is not plainly visible written as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _show_prompt(console: Console, name: str, prompt: PromptView) -> None:
    from_memory = prompt["live_tokens"] + prompt["hot_tokens"]
    _line(
        console,
        f"{name}: {prompt['prompt_tokens']:,} prompt tokens, {prompt['stopped_at']:,} reused"
        f" ({from_memory:,} from memory, {prompt['store_tokens']:,} from the store),"
        f" {prompt['computed_tokens']:,} to compute",
    )
    _line(console, Text.assemble((printable(prompt["reason"]), "bold"), f": {printable(prompt['sentence'])}"))
    if (found := prompt["divergence"]) is not None:
        _line(
            console,
            Text.assemble(
                ("  both    ", "dim"), "..." if found["position"] > CONTEXT_TOKENS else "", _text(found["before"])
            ),
        )
        _line(console, Text.assemble(("  prompt  ", "dim"), _text(found["prompt"], "green")))
        stored = _text(found["stored"], "red") if found["stored"] is not None else Text(NOT_SHOWN)
        _line(console, Text.assemble(("  stored  ", "dim"), stored))
    if prompt["rewrites"]:
        _line(console, f"Rewritten before it was rendered: {printable(', '.join(prompt['rewrites']))}.")
    if (fork := prompt["nearest_fork"]) is not None and prompt["computed_tokens"] > 1:
        kind = printable(fork["kind"].replace("_", " "))
        _line(console, f"The last expected fork before that is at token {fork['position']:,} ({kind}).")


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style)


def _line(console: Console, text: str | Text) -> None:
    console.print(text if isinstance(text, Text) else Text(text), soft_wrap=True)


__all__ = ("DivergenceView", "ForkView", "PromptView", "printable", "show_explanation")
