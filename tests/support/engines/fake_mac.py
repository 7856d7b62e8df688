"""A Mac's system calls, played: what other programs take of its memory, and what was asked of it."""

import struct

from adapters.system.mac import MacCalls


class FakeMac(MacCalls):
    """`level`: the percentage of memory that is neither wired nor compressed; `footprint`: of this process, in bytes.
    With `is_absent` every call fails, as on a system that lacks it."""

    def __init__(self, *, level: int = 50, footprint: int = 1 << 20, is_absent: bool = False) -> None:
        self.level, self.footprint, self.is_absent = level, footprint, is_absent
        self.assertions: list[int] = []
        self.num_asserted = 0
        self.attributes: dict[str, tuple[str, bytes]] = {}

    def number(self, name: str) -> int:
        self._check()
        return {"kern.memorystatus_level": self.level}[name]

    def usage(self) -> bytes:
        self._check()
        counters = [11, 12, 13, 14, 15, 16, 17, self.footprint, 18, 19]  # the order of `struct rusage_info_v0`
        return struct.pack("<16s10Q", b"uuid", *counters)

    def set_attribute(self, path: str, name: str, value: bytes) -> None:
        self._check()
        self.attributes[path] = name, value

    def stay_awake(self, reason: str) -> int:
        self._check()
        self.num_asserted += 1
        self.assertions.append(self.num_asserted)
        return self.num_asserted

    def may_sleep(self, assertion: int) -> None:
        self._check()
        self.assertions.remove(assertion)

    def _check(self) -> None:
        if self.is_absent:
            raise OSError("no such call")
