"""The explanation of a lookup on a terminal. Text of prompts is printed without control codes."""

from rich.console import Console
from rich.text import Text

from domain.prefix.explanation import CONTEXT_TOKENS
from domain.shown import shown
from interfaces.http.native.bodies import PromptExplanation
from interfaces.http.native.cache import ExplanationBody

MAX_TEXT_CHARS = 2000
"""The bound on each text; the text around a divergence has a few dozen tokens."""

NOT_SHOWN = "not shown: cache.show_text is off (auto: shown only by a server on loopback without a key)"


def show_explanation(console: Console, explanation: ExplanationBody) -> None:
    model = shown(explanation.model)
    for number, prompt in enumerate(explanation.prompts, 1):
        name = f"{model}, prompt {number} of {len(explanation.prompts)}" if len(explanation.prompts) > 1 else model
        _show_prompt(console, name, prompt)


def _show_prompt(console: Console, name: str, prompt: PromptExplanation) -> None:
    _line(
        console,
        f"{name}: {prompt.prompt_tokens:,} prompt tokens, {prompt.stopped_at:,} reused"
        f" ({prompt.live_tokens + prompt.hot_tokens:,} from memory, {prompt.store_tokens:,} from the store),"
        f" {prompt.computed_tokens:,} to compute",
    )
    _line(console, Text.assemble((_shown(prompt.reason.value), "bold"), f": {_shown(prompt.sentence)}"))
    if (found := prompt.divergence) is not None:
        _line(
            console,
            Text.assemble(("  both    ", "dim"), "..." if found.position > CONTEXT_TOKENS else "", _text(found.before)),
        )
        _line(console, Text.assemble(("  prompt  ", "dim"), _text(found.prompt, "green")))
        stored = _text(found.stored, "red") if found.stored is not None else Text(NOT_SHOWN)
        _line(console, Text.assemble(("  stored  ", "dim"), stored))
    if (fork := prompt.nearest_fork) is not None and prompt.computed_tokens > 1:
        kind = _shown(fork.kind.value.replace("_", " "))
        _line(console, f"The last expected fork before that is at token {fork.position:,} ({kind}).")


def _shown(text: str) -> str:
    return shown(text, MAX_TEXT_CHARS)


def _text(text: str, style: str = "") -> Text:
    return Text(_shown(text), style)


def _line(console: Console, text: str | Text) -> None:
    console.print(text if isinstance(text, Text) else Text(text), soft_wrap=True)
