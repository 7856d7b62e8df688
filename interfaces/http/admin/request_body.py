"""A request, open or ended, as JSON."""

from typing import Literal

from msgspec import Struct

from application.events import RequestEnded
from application.services.request_timelines import RequestTimeline, Stage
from application.services.text_side.answers.open_requests import Preparation
from domain.prefix.explanation import Explanation
from domain.scheduling.queue_waits import WaitReason
from domain.shown import shown
from interfaces.http.operations.explanation_body import PromptExplanation, prompt_explanation


class StageTimesBody(Struct):
    """Seconds spent waiting, in prefill (restoring included) and in decode, up to now in the stage it is in; null for
    what it has not reached. `ttft_s`: from the queue to the first token."""

    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    ttft_s: float | None


class EndBody(Struct):
    """`reason`: `stop`, `tool_calls`, `length`, `cancelled` or `error`, with the error's code and message then."""

    unix_s: float
    reason: str
    error_code: str | None
    error_message: str


class PreparingBody(Struct):
    """A request that is not in the queue yet, with all its `choices`. `waits_for`: `model` until that is loaded; null
    while its prompt is made into tokens. The rest as in RequestBody."""

    id: str
    model: str
    key: str
    operation: str
    priority: str
    choices: int
    waits_for: str | None
    age_s: float


class RequestBody(Struct):
    """One choice of a request. `id`: as its answer has it, and the log. `key`: the name of the API key, empty without.
    `operation`: by which it came, as the OpenAPI document calls it, empty if unknown. `stage`: where it is, or was when
    it ended. `waits_for`: `place` or `memory` while it is in the queue, else null;
    `waited_for`: each that it ever waited for. `followed`: the request whose computing of the same prefix it waited
    for, null for none. `preempted`: it has given up its
    memory and waits to go on. `done_tokens` of `prompt_tokens` are in its state, reused or computed; `reused`: tokens
    by tier. `end`: null while it is open. `explanation`: what its lookup found, null before; its divergence has text
    only where `shows_text` says so."""

    id: str
    model: str
    requested_model: str
    key: str
    operation: str
    priority: str
    stage: Literal["queue", "prefill", "decode"]
    waits_for: str | None
    waited_for: list[str]
    followed: str | None
    preempted: bool
    preemptions: int
    queued_unix_s: float
    age_s: float
    times: StageTimesBody
    prompt_tokens: int
    done_tokens: int
    computed_tokens: int
    reused: dict[str, int]
    output_tokens: int
    end: EndBody | None
    explanation: PromptExplanation | None
    shows_text: bool = False


def request_body(
    timeline: RequestTimeline,
    explanation: Explanation | None,
    now_ns: int,
    unix_offset_ns: int,
    *,
    shows_text: bool = False,
) -> RequestBody:
    """`explanation`: the part of it that may be shown. `unix_offset_ns`: from the monotonic clock to Unix time."""
    queued, ended = timeline.queued, timeline.ended
    until_ns = now_ns if ended is None else ended.at_ns
    return RequestBody(
        id=timeline.id,
        model=timeline.model,
        requested_model=queued.requested_model,
        key=queued.client,
        operation=queued.operation,
        priority=queued.priority,
        stage=timeline.stage.value,
        waits_for=timeline.waits_for or None,
        waited_for=list(timeline.waited_for),
        followed=timeline.followed or None,
        preempted=timeline.is_preempted,
        preemptions=timeline.num_preemptions,
        queued_unix_s=(queued.at_ns + unix_offset_ns) / 1e9,
        age_s=(until_ns - queued.at_ns) / 1e9,
        times=StageTimesBody(
            timeline.time_in_s(Stage.WAITING, until_ns),
            timeline.time_in_s(Stage.PREFILLING, until_ns),
            timeline.time_in_s(Stage.DECODING, until_ns),
            timeline.time_to_first_token_s,
        ),
        prompt_tokens=queued.num_prompt_tokens,
        done_tokens=timeline.num_done,
        computed_tokens=timeline.num_computed_tokens,
        reused=dict(timeline.reused),
        output_tokens=timeline.num_output,
        end=_end(ended, unix_offset_ns),
        explanation=prompt_explanation(explanation) if explanation is not None else None,
        shows_text=shows_text,
    )


def preparing_body(preparation: Preparation, now_ns: int) -> PreparingBody:
    request = preparation.request
    return PreparingBody(
        id=request.id,
        model=shown(request.model),
        key=request.client,
        operation=request.operation,
        priority=request.priority.value,
        choices=request.num_choices,
        waits_for=None if preparation.has_model else WaitReason.MODEL.value,
        age_s=(now_ns - preparation.started_ns) / 1e9,
    )


def _end(ended: RequestEnded | None, unix_offset_ns: int) -> EndBody | None:
    if ended is None:
        return None
    return EndBody((ended.at_ns + unix_offset_ns) / 1e9, ended.reason, ended.error_code, ended.error_message)
