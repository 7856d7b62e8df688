"""The numbers of bits in which the keys and values of full attention are kept."""

from dataclasses import dataclass
from typing import Self

from domain.errors import require

OFF = "off"
"""The value of the setting for keys and values as they are computed."""

CHOICES = (OFF, "8", "4", "8/4")
"""Every value of the setting."""

LEAST_GROUP = 32
GROUP_SIZES = (LEAST_GROUP, 64, 128)


GROUP_SIZE = 64
"""The default."""


@dataclass(frozen=True, slots=True)
class KVBits:
    """Keys and values in groups of `group_size` neighbours of one token and head, with a scale and a bias each."""

    keys: int
    values: int
    group_size: int = GROUP_SIZE

    @classmethod
    def parse(cls, text: str, group_size: int, name: str) -> Self | None:
        """The setting `name`: one number for both, or the keys' and the values' (`8/4`); None for off. Keys are the
        more sensitive: an error in one moves the weights of all tokens."""
        require(text in CHOICES, name, f"must be {', '.join(CHOICES[:-1])} or {CHOICES[-1]} (keys/values)")
        require(group_size in GROUP_SIZES, f"{name.replace('kv_bits', 'kv_group_size')}", "must be 32, 64 or 128")
        if text == OFF:
            return None
        keys, _, values = text.partition("/")
        return cls(int(keys), int(values or keys), group_size)

    def num_bytes(self, item_bytes: int) -> float:
        """The bytes of a number, the mean of keys and values. `item_bytes`: of one as it is computed, as scales and
        biases are."""
        return (self.keys + self.values) / 16 + 2 * item_bytes / self.group_size

    @property
    def setting(self) -> str:
        """The value of the setting."""
        return str(self.keys) if self.keys == self.values else f"{self.keys}/{self.values}"

    def __str__(self) -> str:
        return f"{self.setting} bits in groups of {self.group_size}"


def smaller_forms() -> tuple[tuple[str, KVBits], ...]:
    """Each value of the setting with less than keys and values as they are computed, the largest first."""
    parsed = ((text, KVBits.parse(text, GROUP_SIZE, "model.kv_bits")) for text in ("8", "8/4", "4"))
    return tuple((text, bits) for text, bits in parsed if bits is not None)
