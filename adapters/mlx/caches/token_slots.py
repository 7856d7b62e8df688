"""Where the tokens of a sequence lie on a tensor's token axis (axis -2), and how to cut some of them out."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """Position `oldest` is in slot `origin`, the following ones after it, modulo `ring` if set."""

    oldest: int
    origin: int
    ring: int | None = None

    def cut(self, tensor: mx.array, start: int, end: int) -> mx.array:
        """Positions [start, end), none before `oldest`; a view unless they wrap around the ring."""
        first, count = self.origin + start - self.oldest, end - start
        first = first if self.ring is None else first % self.ring
        wrapped = 0 if self.ring is None else max(0, first + count - self.ring)
        head = tensor[..., first : first + count - wrapped, :]
        return mx.concatenate([head, tensor[..., :wrapped, :]], axis=-2) if wrapped else head


__all__ = ("TokenSlots",)
