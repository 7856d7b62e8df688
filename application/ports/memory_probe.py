"""The memory that computing happens in, read now: the host's, or an accelerator's.

Threading: any thread, no stream, well under a millisecond: it is read in every step. Errors: none. What cannot be read
is None, never a guess, a peak or yesterday's value; 0 means nothing.

`total_bytes` is what this process may have at most (a container's limit, a device's recommended working set), and
changes at most when somebody changes that. `held_bytes` includes `cached_bytes`: whoever decides about use has the
backend clear its cache first (`ComputeEngine.clear_cache`), or looks at `used_bytes`.
"""

from typing import Protocol

from domain.memory.ledger import MemoryReading


class MemoryProbe(Protocol):
    """See the module docstring."""

    def read(self) -> MemoryReading: ...
