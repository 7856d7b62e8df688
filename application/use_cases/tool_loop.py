"""Answers of several steps: the model calls tools of configured servers, and the server runs these calls.

    generate ──► calls of servers, together ──► results, in the order of the calls ──► generate ──► ...

Each step is a request of its own on the normal path, whose prompt is the prompt of the step before, what was sampled,
and the results. So it reuses all that the step before computed. Nothing but the prefix is held while a tool runs.

The loop ends with an answer, with a call that is the client's or needs its approval, or at a limit. A tool that fails
is a result for the model.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from application.ports.tool_servers import OpenRequested, RequestedServer, Tool, ToolResult, ToolServers
from application.services.text_side.answers.answer import Answer, Progress, Reading, failure
from application.services.text_side.models.model_finder import ServedModel
from application.use_cases.generate import Generate
from domain.errors import ComputeFailed, DomainError, RequestCancelled, ToolCallFailed, ToolNotFound
from domain.id_row import IdRow
from domain.output.schema_check import joined_calls
from domain.prefix.explanation import Explanation
from domain.request.chat import CallMode, ChatMessage, Role, ToolCall
from domain.request.media import Image
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest, Usage, choice_id, total_usage
from domain.request.server_calls import MAX_IMAGES_OF_RESULT, CallFault, CallOutcome, OfferedTool
from domain.request.stream import (
    Admitted,
    ContentDelta,
    Failed,
    Finished,
    ReasoningDelta,
    ServerCallEnded,
    ServerCallsBegan,
    StreamItem,
    TextDelta,
)

_log = logging.getLogger("cairn.tools")

MAX_IN_FLIGHT = 8
"""The calls of one answer that run at once."""

_INVALID_PARAMS = -32602
_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """The bounds of one answer. `tools`: the tools of servers, by the names that the model knows. They stay the same
    in all steps. `max_calls`: of this answer; None for the server's own limit."""

    tools: Mapping[str, OfferedTool]
    max_calls: int | None = None


Add: TypeAlias = Callable[[StreamItem], None]
Prepare: TypeAlias = Callable[[Add], Awaitable[tuple[GenerationRequest, LoopPlan]]]
"""Makes the first step, and adds what it makes on the way to the answer. May raise any DomainError."""


class ToolLoop:
    """Event loop only. `approvals`: by server, whether the operator wants each call to be approved; it is so for a
    server that is missing there. `open_requested`: None where requests name no servers of their own, whose calls are
    approved by the rule `asks_requested`."""

    def __init__(
        self,
        generate: Generate,
        servers: ToolServers,
        approvals: Mapping[str, bool],
        max_steps: int = 10,
        max_calls: int = 32,
        open_requested: OpenRequested | None = None,
        *,
        asks_requested: bool = True,
    ) -> None:
        self._generate = generate
        self._servers = servers
        self._approvals = approvals
        self._open_requested = open_requested
        self._requested: Mapping[str, ToolServers] = {}
        self.asks_requested = asks_requested
        self.max_steps = max_steps
        self.max_calls = max_calls

    def names(self) -> Sequence[str]:
        """Returns the names of all configured servers."""
        return self._servers.names()

    @property
    def takes_requested(self) -> bool:
        return self._open_requested is not None

    @asynccontextmanager
    async def requesting(self, server: RequestedServer) -> "AsyncGenerator[ToolLoop]":
        """Yields this loop with one more server, which hides a configured one of its name, and closes the server.
        Raises InvalidRequest, naming a field of it."""
        assert self._open_requested is not None
        opened, loop = self._open_requested(server), copy(self)
        loop._requested = {**self._requested, server.name: opened}
        try:
            yield loop
        finally:
            await opened.close()

    def needs_approval(self, server: str) -> bool:
        """Returns the operator's rule for the tools of a server."""
        return self.asks_requested if server in self._requested else self._approvals.get(server, True)

    def _of(self, server: str) -> ToolServers:
        return self._requested.get(server, self._servers)

    async def tools(self, server: str) -> Sequence[Tool]:
        """Returns the tools of a server, sorted by name. Raises ToolServerUnavailable."""
        return sorted(await self._of(server).tools(server), key=lambda tool: tool.name)

    async def call(self, tool: OfferedTool, arguments: str) -> CallOutcome:
        """Runs a call. A failure is an outcome, too. A caller that is cancelled cancels the call."""
        try:
            values: Any = json.loads(arguments or "{}", parse_constant=_refuse)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            return CallOutcome("the arguments are not a JSON object", CallFault.PROTOCOL, _INVALID_PARAMS)
        try:
            return _outcome(await self._of(tool.server).call(tool.server, tool.name, cast(dict[str, Any], values)))
        except ToolNotFound as error:
            return CallOutcome(error.message, CallFault.PROTOCOL, _INVALID_PARAMS)
        except ToolCallFailed as error:
            return CallOutcome(error.message, CallFault.PROTOCOL, error.number)
        except DomainError as error:
            return CallOutcome(error.message, CallFault.CONNECTION, _UNAVAILABLE)

    @asynccontextmanager
    async def preparing(self, request: GenerationRequest, prepare: Prepare) -> AsyncGenerator[Reading]:
        """Encloses the stay of a request with tools of servers, as `Generate.answering` does. Yields at once: that
        `prepare` makes the first step is a part of the answer, as are its errors."""
        answer = LoopedAnswer(self, self._generate, request, prepare)
        try:
            yield answer
        finally:
            await answer.close()


class LoopedAnswer:
    """A Reading of all steps as one choice. The next item is made when the reader has taken those before, so that a
    client that reads slowly holds up its own steps only."""

    def __init__(self, loop: ToolLoop, generate: Generate, request: GenerationRequest, prepare: Prepare) -> None:
        self._loop = loop
        self._generate = generate
        self._id = request.id
        self._tools: Mapping[str, OfferedTool] = {}
        self._max_calls = loop.max_calls
        self._first: Answer | None = None
        self._current: Answer | None = None
        self._unread: list[StreamItem] = []
        self._has_unread, self._was_taken = asyncio.Event(), asyncio.Event()
        self._is_admitted = asyncio.Event()
        self._in_flight = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._usages: list[Usage] = []
        self._num_calls = 0
        self.is_open = True
        self._task = asyncio.create_task(self._run(request, prepare))

    # ---- the reader's side -------------------------------------------------------------------------------------

    @property
    def prompts(self) -> list[IdRow]:
        """The prompt of the first step; none before that has begun."""
        return [] if self._first is None else self._first.prompts

    @property
    def model(self) -> ServedModel:
        """The model of the first step, once that has begun."""
        return self._begun.model

    @property
    def _begun(self) -> Answer:
        assert self._first is not None
        return self._first

    @property
    def num_choices(self) -> int:
        return 1

    @property
    def explanations(self) -> list[Explanation | None]:
        """The explanation of the first step."""
        return [None] if self._first is None else self._first.explanations

    @property
    def progress(self) -> Progress:
        return Progress("calling tools") if self._current is None else self._current.progress

    async def admitted(self, timeout_s: float) -> None:
        """As `Answer.admitted`, of the first step; before anything is read."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_admitted.wait()
        except TimeoutError:
            return
        if self._unread and (error := failure(self._unread[-1])) is not None:
            raise error

    async def items(self, until_s: float | None = None) -> list[tuple[int, StreamItem]]:
        """As `Answer.items`."""
        try:
            async with asyncio.timeout_at(until_s):
                while not self._unread:
                    self._has_unread.clear()
                    await self._has_unread.wait()
        except TimeoutError:
            return []
        taken, self._unread = self._unread, []
        self.is_open = not isinstance(taken[-1], Finished | Failed)
        self._was_taken.set()
        return [(0, item) for item in taken]

    async def __aiter__(self) -> AsyncIterator[tuple[int, StreamItem]]:
        while self.is_open:
            for entry in await self.items():
                yield entry

    async def close(self) -> None:
        """Cancels the step or the calls that run, and waits until they have ended. Idempotent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # ---- the steps ---------------------------------------------------------------------------------------------

    async def _run(self, request: GenerationRequest, prepare: Prepare) -> None:
        try:
            with self._generate.enclosing(request):
                await self._run_steps(*await prepare(self._add))
        except DomainError as error:
            self._end(Failed(error))
        except asyncio.CancelledError:  # its reader has left, or a part of it was cancelled by its own end
            self._end(Failed(RequestCancelled()))
        except Exception:
            _log.exception("an answer with tools broke")
            self._end(Failed(ComputeFailed("internal error; the server's log has the details")))

    async def _run_steps(self, request: GenerationRequest, plan: LoopPlan) -> None:
        self._tools = plan.tools
        if plan.max_calls is not None:
            self._max_calls = min(plan.max_calls, self._max_calls)
        step: GenerationRequest | None = request
        number = 1
        while step is not None:
            async with self._generate.answering([step]) as answer:
                self._first = self._first or answer
                step = await self._step(step, answer, number)
            number += 1

    async def _step(self, request: GenerationRequest, answer: Answer, number: int) -> GenerationRequest | None:
        """Passes on what a step generates, and runs its calls. Returns the next step; None after the last one."""
        self._current = answer
        deltas: list[ContentDelta] = []
        async for _, item in answer:
            if isinstance(item, Failed):
                self._end(item)
                return None
            if isinstance(item, Finished):
                self._current = None
                return await self._after(request, deltas, item, number)
            if isinstance(item, ContentDelta):
                deltas.append(item)
            if isinstance(item, Admitted | ContentDelta):
                self._is_admitted.set()
            await self._put(item)
        return None

    async def _after(
        self, request: GenerationRequest, deltas: Sequence[ContentDelta], finished: Finished, number: int
    ) -> GenerationRequest | None:
        self._usages.append(finished.usage)
        calls = joined_calls(deltas) if finished.reason is FinishReason.TOOL_CALLS else ()
        runnable = [call for call in calls if (tool := self._tools.get(call.name)) and not tool.needs_approval]
        run = runnable[: self._max_calls - self._num_calls]
        results: list[ChatMessage] = []
        if run:
            self._num_calls += len(run)
            await self._put(ServerCallsBegan())
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._called(call)) for call in run]
            results = [task.result().message(call.id) for call, task in zip(run, tasks, strict=True)]
        left = None if (most := request.stop.max_tokens) is None else most - finished.usage.completion_tokens
        if len(run) < len(runnable):
            self._finish(finished, "max_tool_calls")
            return None
        if not run or len(run) < len(calls):
            self._finish(finished)
            return None
        if left is not None and left < 1:
            self._finish(replace(finished, reason=FinishReason.LENGTH))
            return None
        if number >= self._loop.max_steps:
            self._finish(finished, "max_steps")
            return None
        messages = [_assistant(deltas, calls), *results]
        return replace(
            request,
            id=choice_id(self._id, number),
            prompt=_continued(request.prompt, messages),
            stop=replace(request.stop, max_tokens=left),
            arrived_ns=None,
        )

    async def _called(self, call: ToolCall) -> CallOutcome:
        async with self._in_flight:
            outcome = await self._loop.call(self._tools[call.name], call.arguments)
        await self._put(ServerCallEnded(call.id, outcome))
        return outcome

    def _finish(self, finished: Finished, limit: str = "") -> None:
        reason = FinishReason.LENGTH if limit else finished.reason
        self._end(replace(finished, reason=reason, usage=total_usage(self._usages), limit=limit))

    def _end(self, item: Finished | Failed) -> None:
        self._add(item)
        self._is_admitted.set()

    def _add(self, item: StreamItem) -> None:
        self._unread.append(item)
        self._has_unread.set()

    async def _put(self, item: StreamItem) -> None:
        """Adds an item, and waits until the reader has taken it."""
        self._add(item)
        self._was_taken.clear()
        await self._was_taken.wait()


def _assistant(deltas: Sequence[ContentDelta], calls: Sequence[ToolCall]) -> ChatMessage:
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    sampled = tuple(replace(call, is_generated=True) for call in calls)
    return ChatMessage(Role.ASSISTANT, text, reasoning=reasoning or None, tool_calls=sampled)


def _continued(prompt: object, messages: Sequence[ChatMessage]) -> ChatPrompt:
    """A choice that requires a call is met by the first step: repeated, it would never let the model answer."""
    assert isinstance(prompt, ChatPrompt)
    choice = prompt.tool_choice
    if choice.mode is CallMode.REQUIRED:
        choice = replace(choice, mode=CallMode.AUTO)
    return replace(prompt, messages=(*prompt.messages, *messages), tool_choice=choice)


def _outcome(result: ToolResult) -> CallOutcome:
    pieces: list[str | Image] = []
    num_images = 0
    for part in result.parts:
        num_images += part.image is not None
        is_shown = part.image is not None and num_images <= MAX_IMAGES_OF_RESULT
        pieces.append(Image(part.image, field="output") if is_shown and part.image is not None else part.text)
    text = "\n".join(part.text for part in result.parts if part.text)
    return CallOutcome(text, CallFault.TOOL if result.is_error else None, pieces=pieces if num_images else ())


def _refuse(constant: str) -> object:
    raise ValueError(constant)
