"""What a long conversation costs before anything is computed: rendered, encoded, its fork points found, hashed.

    python -m bench.prompt_handling [--tokens 200000] [--turns 5] [--json FILE]

A conversation of so many tokens arrives for the first time, then with one more turn at a time. The baseline of each
figure is the first time. Milliseconds of processor time, and of the clock; without the network and the lookup.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from adapters.huggingface.embedded_models import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import Tokenizer
from domain.chat import ChatMessage, Role
from domain.hashing import BlockChain
from domain.model_card import ModelSource
from domain.record import Namespace
from domain.request import ChatPrompt

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


def handled(tokenizer: Tokenizer, messages: list[ChatMessage]) -> tuple[int, dict[str, float]]:
    """Tokens of the prompt, and milliseconds by kind."""
    cpu, clock = time.process_time(), time.perf_counter()
    encoded = tokenizer.render(ChatPrompt(tuple(messages)))
    BlockChain(Namespace(b"bench"), BLOCK, encoded.content)
    taken = {"cpu_ms": (time.process_time() - cpu) * 1e3, "ms": (time.perf_counter() - clock) * 1e3}
    return len(encoded.token_ids), taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = random.Random(1)

    def words(count: int) -> str:
        return " ".join(rng.choice(WORDS) for _ in range(count))

    id = EMBEDDED_IDS[0]
    tokenizer = HfTokenizerLoader().load(ModelSource(id, str(embedded_folder(id))))
    per_word = len(tokenizer.encode(words(1000)).token_ids) / 1000
    handled(tokenizer, [ChatMessage(Role.USER, words(10))])  # the library is imported, the template compiled
    messages = [ChatMessage(Role.SYSTEM, words(3000))]
    for _ in range(int((options.tokens / per_word - 3000) / 800)):
        messages += [ChatMessage(Role.USER, words(100)), ChatMessage(Role.ASSISTANT, words(700))]
    messages.append(ChatMessage(Role.USER, words(50)))
    num_tokens, first = handled(tokenizer, messages)
    turns: list[dict[str, float]] = []
    for _ in range(options.turns):
        messages += [ChatMessage(Role.ASSISTANT, words(300)), ChatMessage(Role.USER, words(100))]
        turns.append(handled(tokenizer, messages)[1])
    later = {kind: statistics.median(turn[kind] for turn in turns) for kind in first}
    print(f"{num_tokens:,} tokens, {len(messages)} messages")
    for kind, value in first.items():
        print(f"{kind:>7}  first {value:8.1f}  next turn {later[kind]:8.1f}  ratio {later[kind] / value:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"tokens": num_tokens, "first": first, "next_turn": later}, indent=1))


if __name__ == "__main__":
    main()
