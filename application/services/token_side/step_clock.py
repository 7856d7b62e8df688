"""What steps take, measured: how long a prefill turn was, and what running streams have had since.

A backend may return from a chunk before it is computed. Then the next decode step waits for it: what that one takes
beyond an ordinary decode step belongs to the chunk. Sans-io: times are given.
"""

from domain.step_values import StepPace


class StepClock:
    def __init__(self) -> None:
        self._pace = StepPace()
        self._usual_ns: int | None = None
        self._turn_ns = self._decode_ns = 0

    @property
    def pace(self) -> StepPace:
        return self._pace

    def decoded(self, duration_ns: int) -> None:
        """A decode step took so long."""
        own_ns = duration_ns
        if self._pace.num_decodes == 0 and self._pace.num_turns:
            own_ns = min(duration_ns, self._usual_ns or 0)
            self._turn_ns += duration_ns - own_ns
        else:
            self._usual_ns = duration_ns
        self._decode_ns += own_ns
        self._tell(self._pace.num_turns, self._pace.num_decodes + 1)

    def prefilled(self, duration_ns: int) -> None:
        """A prefill turn took so long."""
        self._turn_ns, self._decode_ns = duration_ns, 0
        self._tell(self._pace.num_turns + 1, 0)

    def _tell(self, num_turns: int, num_decodes: int) -> None:
        self._pace = StepPace(num_turns, self._turn_ns / 1e9, self._decode_ns / 1e9, num_decodes)


__all__ = ("StepClock",)
