"""What is left of the batch and of memory once a step is planned, for the choices that are forked in it."""

from dataclasses import dataclass

from application.services.prefix.step_room import StepRoom


@dataclass(slots=True)
class BatchRoom:
    """`num_bytes`: of what those may take who are admitted; None: any number. `step`: what they take it of."""

    num_places: int
    num_bytes: int | None
    step: StepRoom

    def takes(self, charge_bytes: int) -> bool:
        """Take a place and so many bytes; False when there is no place, or not so many."""
        has_room = self.num_bytes is None or charge_bytes <= self.num_bytes
        if self.num_places <= 0 or not has_room or not self.step.has_at_once(charge_bytes):
            return False
        self.step.take(charge_bytes)
        self.num_places -= 1
        self.num_bytes = None if self.num_bytes is None else self.num_bytes - charge_bytes
        return True


__all__ = ("BatchRoom",)
