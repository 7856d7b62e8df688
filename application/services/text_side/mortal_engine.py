"""An engine of one life: it may end unasked, and says so. Whoever wants to go on makes another one."""

from collections.abc import Callable
from typing import Protocol

from application.ports.engine import Engine
from application.ports.model_repository import ModelPreview
from domain.model_card import LoadOptions, ModelSource


class MortalEngine(Engine, Protocol):
    """An Engine of one life, which may end unasked."""

    async def begun(self) -> None:
        """Once it is made, or has ended."""
        ...

    async def check(self, source: ModelSource, options: LoadOptions) -> ModelPreview:
        """As a ModelCheck."""
        ...

    def abandon(self) -> None:
        """End it as it is, after a word on where it hangs. It is lost then."""
        ...


class MakeMortal(Protocol):
    def __call__(self, lost: Callable[[str], None]) -> MortalEngine:
        """`lost`: called once on the event loop when it has ended unasked, with the reason, before what is open in it
        ends. Nothing of it computes any more then."""
        ...


__all__ = ("MakeMortal", "MortalEngine")
