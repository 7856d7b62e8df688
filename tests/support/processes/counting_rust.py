"""A Rust tokenizer that counts its encodings."""

from collections import Counter
from threading import Lock
from typing import Any

from adapters.tokenizers.library import RustTokenizer


class CountingRust:
    """Delegates everything. `calls`: by method name; `longest_chars`: length of the longest text that was encoded;
    `num_chars`: of all of them. Any thread."""

    def __init__(self, rust: RustTokenizer) -> None:
        self._rust = rust
        self._lock = Lock()
        self.calls: Counter[str] = Counter()
        self.longest_chars = self.num_chars = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._rust, name)
        if name not in ("encode", "encode_batch", "encode_batch_fast"):
            return found

        def counted(texts: str | list[str], **options: Any) -> Any:
            lengths = [len(text) for text in ([texts] if isinstance(texts, str) else texts)]
            with self._lock:
                self.calls[name] += 1
                self.longest_chars = max(self.longest_chars, *lengths, 0)
                self.num_chars += sum(lengths)
            return found(texts, **options)

        return counted
