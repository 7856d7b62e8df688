"""A grammar's trial in a separate process: compiles it, follows it for a few dozen tokens, and reports the fault.

The library may need any time, any memory and any stack depth for a client's grammar (measured with 1.9.1: 5,000 `$defs`
in a row, 3,000 Lark rules in a row; an integer that is a multiple of 999,983 never finishes compiling). Here that ends
this process, and its exit status reports it. The stack is an eighth of a server thread's, so a grammar that passes fits
there.

Standard library and llguidance only: started by its path, it imports nothing of Cairn. One JSON object on stdin, one on
stdout: {"grammar", "limits", "vocab_size", "special": {name: id}} to {"error"}.
"""

import json
import random
import resource
import sys
import threading
import time
from typing import Any

CPU_S = 2
MEMORY_BYTES = 2**30
STACK_BYTES = 2**20
NUM_TOKENS = 64
MAX_STEP_S = 0.1

STEP_TOO_SLOW = "it takes too long to follow a token; simplify it"
NOTHING_MATCHES = "no text matches it"


class _Bytes:
    """The 256 bytes as tokens, and the model's special tokens at their own ids."""

    def __init__(self, vocab_size: int, special: dict[str, int]) -> None:
        taken = set(special.values())
        self.tokens = [b""] * (max(vocab_size, *taken, 0) + 1 + 257)
        free = (id for id in range(len(self.tokens)) if id not in taken)
        for byte, id in zip(range(256), free, strict=False):
            self.tokens[id] = bytes([byte])
        for name, id in special.items():
            self.tokens[id] = name.encode()
        self.eos_token_id = len(self.tokens) - 1
        self.tokens[self.eos_token_id] = b"<end-of-trial>"
        self.bos_token_id = None
        self.special_token_ids = [*taken, self.eos_token_id]

    def __call__(self, _text: object) -> list[int]:
        return []


def trial(asked: dict[str, Any]) -> str:
    """Returns the fault of the grammar; empty if none was found."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

    limits = LLParserLimits(**asked["limits"], verbose_errors=False)
    tokens = _Bytes(asked["vocab_size"], asked["special"])
    tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=tokens.eos_token_id)
    wrong, messages = LLMatcher.validate_grammar_with_warnings(asked["grammar"], tokenizer, limits=limits)
    if wrong:
        return messages[0]
    matcher = LLMatcher(tokenizer, asked["grammar"], log_level=0, limits=limits)
    return matcher.get_error() or _walk(matcher, tokens.eos_token_id)


def _walk(matcher: Any, eos: int) -> str:
    draw = random.Random(0)
    for number in range(NUM_TOKENS):
        started = time.process_time()
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return NOTHING_MATCHES if number == 0 else matcher.get_error()
        mask_s = time.process_time() - started
        allowed = [at * 8 + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
        going_on = [id for id in allowed if id != eos]
        if not going_on:
            return "" if matcher.is_accepting() else NOTHING_MATCHES
        token, started = draw.choice(going_on), time.process_time()
        matcher.consume_token(token)
        if mask_s + time.process_time() - started > MAX_STEP_S:
            return STEP_TOO_SLOW
    return ""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    asked = json.load(sys.stdin)
    found: list[str] = []
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: found.append(trial(asked)))
    thread.start()
    thread.join()
    json.dump({"error": found[0]}, sys.stdout)  # raises without an answer: the exit status reports it


if __name__ == "__main__":
    main()
