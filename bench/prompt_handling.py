"""What a long prompt costs before anything is computed: rendered, encoded, its fork points found, hashed.

    python -m bench.prompt_handling [--tokens 200000] [--rounds 5] [--json FILE]

Two prompts of so many tokens, a conversation and one long text. Each arrives for the first time, then again longer: the
conversation by a turn, the text by a few words. Taking turns, in one process; medians in milliseconds: of the clock, of
processor time. Without the network and the lookup. The baselines are the first time, and the text encoded whole.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.library import load_tokenizer, rust_tokenizer
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import EncodedPrompt
from domain.models.model_card import ModelSource
from domain.prefix.hashing import BlockChain
from domain.prefix.record import Namespace
from domain.request.chat import ChatMessage, Role
from domain.request.request import ChatPrompt

BLOCK = 256
WORDS = (
    "the",
    "sea",
    "is",
    "wide",
    "and",
    "file",
    "path",
    "return",
    "import",
    "self",
    "value",
    "error",
    "line",
    "class",
)

BASELINES = {
    "conversation": "conversation",
    "next turn": "conversation",
    "text, whole": "text, whole",
    "text": "text, whole",
}
"""What each figure is a ratio to."""

Figures = dict[str, float]


def taken(work: Callable[[], object]) -> Figures:
    """Milliseconds by kind."""
    clocks = {"ms": time.perf_counter, "cpu_ms": time.process_time}
    began = {kind: clock() for kind, clock in clocks.items()}
    work()
    return {kind: (clock() - began[kind]) * 1e3 for kind, clock in clocks.items()}


def hashed(prompt: EncodedPrompt) -> EncodedPrompt:
    BlockChain(Namespace(b"bench"), BLOCK, prompt.token_ids)
    return prompt


def medians(rounds: list[Figures]) -> Figures:
    return {kind: statistics.median(one[kind] for one in rounds) for kind in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = random.Random(1)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    folder = str(embedded_folder(EMBEDDED_IDS[0]))
    source = ModelSource(EMBEDDED_IDS[0], folder)
    tokenizer = HfTokenizerLoader().load(source)
    rust = rust_tokenizer(load_tokenizer(folder))
    assert rust is not None
    num_words = int(options.tokens / len(tokenizer.encode(words(1000)).token_ids) * 1000)

    def conversation() -> list[ChatMessage]:
        messages = [ChatMessage(Role.SYSTEM, words(3000))]
        for _ in range((num_words - 3000) // 800):
            messages += [ChatMessage(Role.USER, words(100)), ChatMessage(Role.ASSISTANT, words(700))]
        return [*messages, ChatMessage(Role.USER, words(50))]

    def encoded(text: str, salt: str) -> EncodedPrompt:
        return hashed(tokenizer.encode(text, salt=salt))

    def rendered(messages: list[ChatMessage], salt: str) -> EncodedPrompt:
        return hashed(tokenizer.render(ChatPrompt(tuple(messages)), salt=salt))

    rendered(conversation()[-1:], "")  # the library is imported, the template compiled
    rows: dict[str, list[Figures]] = {name: [] for name in BASELINES}
    num_tokens = num_messages = 0
    for number in range(options.rounds):
        # Nobody meets what another has sent: with a salt of its own, each arrives for the first time.
        messages, salt = conversation(), f"{number}"
        rows["conversation"].append(taken(partial(rendered, messages, salt)))
        num_tokens, num_messages = (
            len(tokenizer.render(ChatPrompt(tuple(messages)), salt=salt).token_ids),
            len(messages),
        )
        messages += [ChatMessage(Role.ASSISTANT, words(300)), ChatMessage(Role.USER, words(100))]
        rows["next turn"].append(taken(partial(rendered, messages, salt)))
        text = words(num_words)
        rows["text, whole"].append(taken(partial(rust.encode_batch, [text], add_special_tokens=False)))
        rows["text"].append(taken(partial(encoded, text, salt)))
    found = {name: medians(rounds) for name, rounds in rows.items()}
    print(f"{num_tokens:,} tokens, {num_messages} messages")
    for name, figures in found.items():
        base = found[BASELINES[name]]
        shown = "  ".join(f"{kind} {value:7.1f} ({value / base[kind]:4.2f})" for kind, value in figures.items())
        print(f"{name:>25}  {shown}")
    if options.json:
        options.json.write_text(json.dumps({"tokens": num_tokens, **found}, indent=1))


if __name__ == "__main__":
    main()
