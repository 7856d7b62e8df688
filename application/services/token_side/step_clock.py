"""What steps take, measured: how long a prefill turn was, and what running streams have had since.

A backend may return from a chunk before it is computed. Then the next decode step waits for it: what that one takes
beyond an ordinary decode step belongs to the turn, and until it is known the turn counts as late as the last one was.
Sans-io: times are given.
"""

from domain.step_values import StepPace


class StepClock:
    def __init__(self) -> None:
        self._num_turns = self._num_decodes = self._num_held = 0
        self._turn_ns = self._late_ns = self._decode_ns = self._step_ns = 0

    @property
    def pace(self) -> StepPace:
        turn_ns = self._turn_ns + self._late_ns
        return StepPace(
            self._num_turns,
            turn_ns / 1e9,
            self._decode_ns / 1e9,
            self._num_decodes,
            self._step_ns / 1e9,
            self._num_held,
        )

    def decoded(self, duration_ns: int) -> None:
        """A decode step took so long."""
        if self._num_decodes == 0 and self._num_turns:
            own_ns = self._step_ns = min(duration_ns, self._step_ns)
            self._late_ns = duration_ns - own_ns
        else:
            own_ns = self._step_ns = duration_ns
        self._decode_ns += own_ns
        self._num_decodes += 1

    def prefilled(self, duration_ns: int) -> None:
        """A prefill turn took so long."""
        self._turn_ns, self._decode_ns = duration_ns, 0
        self._num_turns += 1
        self._num_decodes = self._num_held = 0

    def held(self) -> None:
        """The next turn was held for a step."""
        self._num_held += 1


__all__ = ("StepClock",)
