"""What was told of one choice's prompt: each thing once, however often it is computed.

What is computed again, after a preemption or by another engine, is the server's business: the reader's usage is that of
the first admission.
"""

from collections.abc import Callable

from application.ports.compute import PromptScores
from application.ports.engine import EngineItem, ResumedChoice
from domain.explanation import Explanation
from domain.request import Usage
from domain.scheduling import PrefillChunk
from domain.stream import Admitted, PrefillProgress, PromptLogprobs


class ToldPrompt:
    def __init__(
        self,
        num_prompt: int,
        num_logprobs: int | None,
        send: Callable[[EngineItem], None],
        before: ResumedChoice | None = None,
    ) -> None:
        """`num_logprobs`: the reader wants the prompt's log probabilities, each with so many alternatives. `before`:
        what another engine told."""
        self._num_prompt = num_prompt
        self._num_logprobs = num_logprobs
        self._send = send
        self._num_done = before.num_prompt_done if before is not None else 0
        self._explanation = before.explanation if before is not None else None

    @property
    def num_logprobs(self) -> int | None:
        """How the rest of the prompt is to be scored; None when nothing is, or all of it was told."""
        return self._num_logprobs if self._num_done < self._num_prompt else None

    def usage(self, num_output: int) -> Usage:
        if self._explanation is None:
            return Usage(self._num_prompt, num_output)
        return Usage.of(self._explanation, num_output)

    def admitted(self, explanation: Explanation) -> None:
        if self._explanation is None:
            self._explanation = explanation
            self._send(Admitted(explanation))

    def computed(self, chunk: PrefillChunk, scores: PromptScores) -> None:
        """`scores`: of the chunk's tokens, if they were to be scored."""
        num_before = self._num_done
        if chunk.end <= num_before or num_before == self._num_prompt:
            return
        self._num_done = chunk.end
        if self._num_logprobs is not None:
            self._send(PromptLogprobs(tuple(scores[max(0, num_before - chunk.start) :])))
        self._send(PrefillProgress(chunk.end, self._num_prompt))


__all__ = ("ToldPrompt",)
