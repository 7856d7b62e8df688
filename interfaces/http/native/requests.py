"""GET /admin/api/requests, GET /admin/api/requests/{id}, POST /admin/api/requests/{id}/cancel. For admins.

Text of prompts is shown by the rule of `/v1/cache/explain`: only where a setting allows it, and only to a client with
the key and the salt of the request.
"""

import asyncio
from typing import Annotated, Any, Literal

from litestar import get, post
from litestar.connection import Request
from litestar.datastructures import CacheControlHeader
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from msgspec import Struct

from application.events import RequestEnded
from application.services.request_timelines import MAX_ENDED, NUM_SLOWEST, RequestTimeline, Stage
from application.services.text_side.answers.open_requests import Preparation
from application.use_cases.models import Models
from domain.errors import RequestNotFound
from domain.ids import RequestId
from domain.prefix.explanation import Explanation
from domain.printable import printable
from domain.request.document import Owner
from domain.scheduling.queue_waits import WaitReason
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import admins_only, context_of
from interfaces.http.native.bodies import PromptExplanation, prompt_explanation
from interfaces.http.services import Services

PREFIX = "/admin/api"


def admin_get(path: str, operation_id: str, *statuses: int) -> get:
    """A decorator of handlers. `path`: below PREFIX. `statuses`: of the errors that it has of its own."""
    return get(
        PREFIX + path,
        guards=[admins_only],
        cache_control=CacheControlHeader(no_store=True),
        operation_id=operation_id,
        responses=errors(401, *statuses),
    )


class StageTimesBody(Struct):
    """The seconds spent waiting, in prefill (restoring included) and in decode, up to now in the stage it is in; null
    for what it has not reached. `ttft_s`: from the queue to the first token. `restore_s`: fetching and copying the
    state that its lookup found; null if none was."""

    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    ttft_s: float | None
    restore_s: float | None = None


class EndBody(Struct):
    """The end of a choice. `reason`: `stop`, `tool_calls`, `length`, `cancelled` or `error`, with the error's code and
    message then. `repeated_tokens`: the size of the pattern whose repetition ended the answer, 0 for none."""

    unix_s: float
    reason: str
    error_code: str | None
    error_message: str
    repeated_tokens: int = 0


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


class ImagesBody(Struct):
    """The images of a prompt. `reused_tokens` of their `tokens` were reused; the model's tower passed over `seen` of
    them, in `tower_s`."""

    images: int
    tokens: int
    reused_tokens: int
    seen: int
    tower_s: float


class RequestBody(Struct):
    """One choice of a request. `id`: as its answer has it, and the log. `key`: the name of the API key, empty without.
    `operation`: its operation id in the OpenAPI document, empty if unknown. `stage`: the current one, or the last one
    of a request that ended. `waits_for`: `place` or `memory` while it is in the queue, else null;
    `waited_for`: each that it ever waited for. `followed`: the request that computed the same prefix meanwhile, null
    for none. `preempted`: it has given up its
    memory and waits to go on. `done_tokens` of `prompt_tokens` are in its state, reused or computed; `reused`: tokens
    by tier. `end`: null while it is open. `explanation`: what its lookup found, null before; its divergence has text
    only where `shows_text` says so. `images`: null without any, or before the lookup. `drafted_tokens`: draft tokens
    that were verified, `accepted_tokens` of them; 0 while it is open."""

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
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    images: ImagesBody | None = None


def request_body(
    timeline: RequestTimeline,
    explanation: Explanation | None,
    now_ns: int,
    unix_offset_ns: int,
    *,
    shows_text: bool = False,
) -> RequestBody:
    """A timeline as a body. `explanation`: the part of it that may be shown. `unix_offset_ns`: from the monotonic clock
    to Unix time."""
    queued, ended, restored = timeline.queued, timeline.ended, timeline.restored
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
            None if restored is None else (restored.at_ns - restored.started_ns) / 1e9,
        ),
        prompt_tokens=queued.num_prompt_tokens,
        done_tokens=timeline.num_done,
        computed_tokens=timeline.num_computed_tokens,
        reused=dict(timeline.reused),
        output_tokens=timeline.num_output,
        end=_end(ended, unix_offset_ns),
        explanation=prompt_explanation(explanation) if explanation is not None else None,
        shows_text=shows_text,
        drafted_tokens=0 if ended is None else ended.usage.num_proposed,
        accepted_tokens=0 if ended is None else ended.usage.num_accepted,
        images=_images(timeline),
    )


def _images(timeline: RequestTimeline) -> ImagesBody | None:
    if (found := timeline.images) is None:
        return None
    tower_s = timeline.tower_ns / 1e9
    return ImagesBody(found.num_images, found.num_tokens, found.num_reused, timeline.num_seen, tower_s)


def preparing_body(preparation: Preparation, now_ns: int) -> PreparingBody:
    request = preparation.request
    return PreparingBody(
        id=request.id,
        model=printable(request.model),
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
    num_repeated = 0 if ended.parsing is None else ended.parsing.repeated_tokens
    at_unix_s = (ended.at_ns + unix_offset_ns) / 1e9
    return EndBody(at_unix_s, ended.reason, ended.error_code, ended.error_message, num_repeated)


DEFAULT_ENDED = 50
MAX_SHOWN = 200
"""Open requests in one list, and requests that are being prepared."""


class RequestListBody(Struct, tag_field="object", tag="cairn.requests"):
    """The requests of a server. `open`: the longest open first, at most 200 of `open_count`, without their
    explanations; `ended`: the last first, without any text; `slowest`: of those that ended in the last hour, with the
    longest time to the first token first, without any text. `preparing`: those that are not in the queue yet, the
    longest waiting first, at most 200 of `preparing_count`."""

    open_count: int
    open: list[RequestBody]
    ended: list[RequestBody]
    preparing_count: int
    preparing: list[PreparingBody]
    slowest: list[RequestBody] = []


class CancelledBody(Struct, tag_field="object", tag="cairn.cancelled"):
    """The request ends within one engine step, and its client gets an error."""

    id: str


def request_routes(services: Services) -> list[HTTPRouteHandler]:
    clock = services.clock

    @admin_get("/requests", "listRequests", 400)
    async def list_requests(
        ended: Annotated[int, Parameter(ge=0, le=MAX_ENDED, description="How many that ended.")] = DEFAULT_ENDED,
        slowest: Annotated[int, Parameter(ge=0, le=NUM_SLOWEST, description="How many of the slowest.")] = 0,
    ) -> RequestListBody:
        now_ns, preparing = clock.now_ns(), services.requests.preparations()
        offset_ns = clock.unix_ns() - now_ns
        num_open, opened = services.timelines.num_open, services.timelines.open(MAX_SHOWN)
        last, slow = services.timelines.ended(ended), services.timelines.slowest(slowest, now_ns)

        def body() -> RequestListBody:
            # Polled: fields that no client reads in a list are left out.
            return RequestListBody(
                num_open,
                [request_body(one, None, now_ns, offset_ns) for one in opened],
                [request_body(one, one.without_tokens(), now_ns, offset_ns) for one in last],
                len(preparing),
                [preparing_body(one, now_ns) for one in preparing[:MAX_SHOWN]],
                [request_body(one, one.without_tokens(), now_ns, offset_ns) for one in slow],
            )

        return await asyncio.to_thread(body)  # many take milliseconds

    @admin_get("/requests/{request_id:str}", "readRequest", 404)
    async def read_request(request_id: str, request: Request[Any, Any, Any]) -> RequestBody:
        context = context_of(request.scope)
        viewer = Owner.of("", context.client.tenant(context.salt()), context.client.name)
        timeline = services.timelines.get(RequestId(request_id))
        if timeline is None:
            raise RequestNotFound(f"no request '{printable(request_id)}' is open or among the last that ended")
        with_text = await _with_text(timeline, viewer, services.models)
        found, now_ns = with_text or timeline.without_tokens(), clock.now_ns()
        offset_ns = clock.unix_ns() - now_ns
        return request_body(timeline, found, now_ns, offset_ns, shows_text=with_text is not None)

    @post(
        f"{PREFIX}/requests/{{request_id:str}}/cancel",
        guards=[admins_only],
        status_code=200,
        operation_id="cancelRequest",
        responses=errors(401, 404, 415),
    )
    async def cancel_request(request_id: str) -> CancelledBody:
        services.requests.cancel(RequestId(request_id))
        return CancelledBody(request_id)

    return [list_requests, read_request, cancel_request]


async def _with_text(timeline: RequestTimeline, viewer: Owner, models: Models) -> Explanation | None:
    """Returns the explanation with the text around its divergence; None if there is none that the viewer may see, or
    its model is not loaded."""
    found = timeline.tokens_for(viewer)
    if found is None or found.divergence is None or not found.divergence.prompt_ids:
        return None
    tokenizer = models.loaded_tokenizer(timeline.model)
    return None if tokenizer is None else await asyncio.to_thread(found.with_text, tokenizer.decode)
