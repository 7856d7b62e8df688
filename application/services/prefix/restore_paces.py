"""How fast prompts are restored and computed, by model, from what really was. Compute thread only."""

from domain.restore_pace import RestorePace

MAX_MODELS = 64


class RestorePaces:
    """`restores_always`: whatever was measured, what a store has is restored."""

    def __init__(self, *, restores_always: bool = False) -> None:
        self._restores_always = restores_always
        self._paces: dict[str, RestorePace] = {}

    def restored(self, model: str, num_tokens: int, spent_ns: int) -> None:
        """See RestorePace."""
        self._put(model, self._of(model).restored(num_tokens, spent_ns))

    def computed(self, model: str, start: int, end: int, spent_ns: int) -> None:
        """See RestorePace."""
        self._put(model, self._of(model).computed(start, end, spent_ns))

    def may_decline(self, model: str) -> bool:
        """Whether it is worth asking."""
        return not self._restores_always and self._of(model).is_known

    def declines(self, model: str, start: int, end: int, num_cold: int) -> bool:
        """Whether a prompt's tokens from `start` to `end` are to be computed, and `num_cold` of them not read. Asked
        once for each prompt: it is counted."""
        pace = self._of(model)
        if self._restores_always or not pace.prefers_computing(start, end, num_cold):
            return False
        self._put(model, pace.declined())
        return True

    def _of(self, model: str) -> RestorePace:
        return self._paces.get(model, RestorePace())

    def _put(self, model: str, pace: RestorePace) -> None:
        if model not in self._paces and len(self._paces) >= MAX_MODELS:
            self._paces.clear()
        self._paces[model] = pace


__all__ = ("MAX_MODELS", "RestorePaces")
