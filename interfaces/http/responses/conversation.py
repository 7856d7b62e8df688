"""Input items of the wire as the domain's conversation.

Every role stays in its place. The items of one answer (reasoning, text, calls) are one message of the assistant. A
compaction stands for what came before it (see `compaction`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Raw

from domain.errors import InvalidRequest, require
from domain.printable import printable
from domain.request.chat import ChatMessage, Media, Role, ToolCall, message_of
from domain.request.server_calls import NOT_APPROVED, NOT_RUN, CallFault, CallOutcome
from interfaces.http.fields.custom_tools import custom_arguments
from interfaces.http.fields.media_fields import file_of, image_of
from interfaces.http.fields.sampling_fields import media_note
from interfaces.http.incoming.json_body import by_type, check_arguments
from interfaces.http.responses.compaction import INSTRUCTION, NO_SEAL, OPENING, Compacting, Seal
from interfaces.http.responses.items import (
    PARTS,
    ApprovalRequestItem,
    ApprovalResponseItem,
    AudioPart,
    CallOutputItem,
    Calls,
    CompactionItem,
    Content,
    CustomToolCallItem,
    FilePart,
    FunctionCallItem,
    ImagePart,
    Item,
    ItemReference,
    McpCallItem,
    McpListItem,
    MessageItem,
    Part,
    ReasoningItem,
    RefusalPart,
    TextPart,
    ToolsItem,
    TriggerItem,
    decoded,
    item_of,
    kind_of,
)
from interfaces.http.responses.server_tools import outcome_of, step_of
from interfaces.http.responses.tools import template_name

_ROLES = {"system": Role.SYSTEM, "developer": Role.DEVELOPER, "assistant": Role.ASSISTANT}


_EARLIER = "previous_response_id"

Items = str | Sequence[Raw]


@dataclass(frozen=True, slots=True)
class _Entry:
    """An item that was read. `path`: its place, for errors."""

    path: str
    raw: Raw
    item: Item | None


def conversation(items: Items, earlier: Sequence[Raw] = (), seal: Seal = NO_SEAL) -> tuple[ChatMessage, ...]:
    """The messages of a request. `earlier`: the items of the previous responses. `seal`: of its compactions. Raises
    InvalidRequest, naming `input[i].field`."""
    messages = tuple(_Conversation(_entries(items, earlier), seal).messages)
    check_arguments(messages, "input")
    return messages


def compacting(items: Items, earlier: Sequence[Raw], seal: Seal) -> Compacting:
    """The compaction of a conversation. Raises InvalidRequest."""
    entries = _entries(items, earlier)
    window = _window(entries, seal)
    finished = {entry.item.call_id for entry in window if isinstance(entry.item, CallOutputItem)}
    calls = [entry.raw for entry in window if isinstance(entry.item, Calls) and entry.item.call_id not in finished]
    return Compacting(seal, calls, [entry.raw for entry in entries if _outlives(entry.item)])


def approvals(items: Items, earlier: Sequence[Raw]) -> list[tuple[str, ApprovalRequestItem]]:
    """The requests that the input approves and that have not been run, each with the path of its approval. Raises
    InvalidRequest for an approval of nothing."""
    own = _with_paths("input", () if isinstance(items, str) else items)
    if all(kind_of(raw, path) is not ApprovalResponseItem for path, raw in own):
        return []
    entries = _entries(items, earlier)
    requests = {entry.item.id: entry.item for entry in entries if isinstance(entry.item, ApprovalRequestItem)}
    run = {entry.item.approval_request_id for entry in entries if isinstance(entry.item, McpCallItem)}
    found: dict[str, tuple[str, ApprovalRequestItem]] = {}
    for path, item in ((entry.path, entry.item) for entry in entries):
        if isinstance(item, ApprovalResponseItem) and not path.startswith(_EARLIER):
            id, at = item.approval_request_id, f"{path}.approval_request_id"
            require(id in requests, at, "names no request for an approval in this conversation")
            if item.approve and id not in run:
                found.setdefault(id, (path, requests[id]))
    return list(found.values())


def listed_servers(items: Items, earlier: Sequence[Raw]) -> set[str]:
    """The servers whose tools an item of the conversation lists."""
    entries = _entries(items, earlier)
    return {entry.item.server_label for entry in entries if isinstance(entry.item, McpListItem)}


def has_answer(items: Items, earlier: Sequence[Raw], seal: Seal) -> bool:
    """Returns whether there is anything that a compaction would replace. Raises InvalidRequest."""
    return any(_is_answer(entry.item) for entry in _window(_entries(items, earlier), seal))


def _entries(items: Items, earlier: Sequence[Raw]) -> list[_Entry]:
    """Without the triggers of earlier responses, which have been answered."""
    before = [_Entry(path, raw, item_of(raw, path)) for path, raw in _with_paths(_EARLIER, earlier)]
    found = [entry for entry in before if not isinstance(entry.item, TriggerItem)]
    if isinstance(items, str):
        return [*found, _Entry("input", Raw(), MessageItem("user", items))]
    return found + [_Entry(path, raw, item_of(raw, path)) for path, raw in _with_paths("input", items)]


def _window(entries: Sequence[_Entry], seal: Seal) -> Sequence[_Entry]:
    """The entries that the model reads: the last compaction is opened, in place of all that it replaces. Raises
    InvalidRequest for one that cannot be opened."""
    compactions = [(at, entry.item) for at, entry in enumerate(entries) if isinstance(entry.item, CompactionItem)]
    if not compactions:
        return entries
    at, item = compactions[-1]
    path, after, content = entries[at].path, entries[at + 1 :], seal.open(item.encrypted_content)
    if content is None:
        raise InvalidRequest(
            f"{path}.encrypted_content is no compaction by this model for this tenant, or was changed; send the items"
            " that it replaced",
            param=f"{path}.encrypted_content",
        )
    summary = _Entry(path, entries[at].raw, MessageItem("user", OPENING + content.summary))
    repeated = {entry.item.call_id for entry in after if isinstance(entry.item, Calls)}
    opened = [_Entry(path, raw, item_of(raw, path)) for raw in content.calls]
    calls = [entry for entry in opened if isinstance(entry.item, Calls) and entry.item.call_id not in repeated]
    return [*(entry for entry in entries[:at] if _outlives(entry.item)), summary, *calls, *after]


def tools_in(items: Items) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tools that items bring, each with its path. Raises InvalidRequest."""
    for path, raw in _with_paths("input", () if isinstance(items, str) else items):
        if kind_of(raw, path) is ToolsItem:
            tools = decoded(raw, ToolsItem, path).tools
            yield from ((f"{path}.tools[{at}]", tool) for at, tool in enumerate(tools or ()))


@dataclass(slots=True)
class _Turn:
    """The assistant's turn, so far."""

    pieces: list[str | Media] = field(default_factory=list[str | Media])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: list[ChatMessage] = field(default_factory=list[ChatMessage])
    """The results of its calls that the server ran."""
    step: str | None = None
    """The step that made those calls."""

    def message(self) -> ChatMessage:
        thought = "\n\n".join(text for text in self.thoughts if text)
        said = message_of(Role.ASSISTANT, self.pieces)
        return replace(said, reasoning=thought or None, tool_calls=tuple(self.calls))


class _Conversation:
    def __init__(self, entries: Sequence[_Entry], seal: Seal) -> None:
        self.messages: list[ChatMessage] = []
        self._turn: _Turn | None = None
        found = _window(entries, seal)
        require(len(found) > 0, "input", "must not be empty")
        items = [entry.item for entry in found]
        self._decisions = {one.approval_request_id: one for one in items if isinstance(one, ApprovalResponseItem)}
        self._requests = {one.id for one in items if isinstance(one, ApprovalRequestItem)}
        self._runs = {one.approval_request_id: one for one in items if isinstance(one, McpCallItem)}
        self._refuses_media = not any(_is_answer(entry.item) for entry in entries)
        if any(entry.path.startswith(_EARLIER) for entry in entries):
            _check_results([(entry.path, entry.item) for entry in found])
        self._last = found[-1].path
        for entry in found:
            if entry.item is not None:
                self._add(entry.item, entry.path)
        if self._turn is not None and self._turn.results:
            self._flush()
        if self._turn is not None:
            raise InvalidRequest(
                "input: continuing an answer that the client began is not supported; the last message must not be the"
                " assistant's",
                param=self._last,
            )

    def _add(self, item: Item, path: str) -> None:
        match item:
            case MessageItem():
                self._message(item, f"{path}.content")
            case ReasoningItem(content=content, summary=summary):
                pieces = pieces_of(content or summary or [], path, refuses_media=False)
                self._assistant_turn().thoughts.append(message_of(Role.ASSISTANT, pieces, "\n\n").content)
            case FunctionCallItem(call_id=id, name=name, namespace=namespace, arguments=arguments):
                turn = self._assistant_turn(step_of(item.id or "")[0])
                turn.calls.append(ToolCall(id, template_name(name, namespace), arguments))
            case CustomToolCallItem(call_id=id, name=name, namespace=namespace, input=text):
                arguments = custom_arguments(text)
                self._assistant_turn().calls.append(ToolCall(id, template_name(name, namespace), arguments))
            case CallOutputItem(call_id=id, output=output):
                pieces = pieces_of(output, f"{path}.output", refuses_media=False)
                self._append(replace(message_of(Role.TOOL, pieces, "\n"), tool_call_id=id))
            case McpCallItem() | ApprovalRequestItem():
                self._server_call(item)
            case ApprovalResponseItem() | McpListItem() | ToolsItem() | CompactionItem():
                pass  # see `_decided`, `prepared`, `tools_in` and `_window`
            case TriggerItem():
                require(path == self._last, path, "must be the last item of the input")
                require(bool(self.messages or self._turn), path, "has no conversation before it to compact")
                self._append(ChatMessage(Role.USER, INSTRUCTION))
            case ItemReference():
                raise InvalidRequest("item_reference: the item was not looked up", param=path)

    def _message(self, item: MessageItem, path: str) -> None:
        role = _ROLES.get(item.role, Role.USER)
        if role is Role.ASSISTANT:
            self._assistant_turn().pieces += pieces_of(item.content, path, refuses_media=False)
        else:
            pieces = pieces_of(item.content, path, refuses_media=self._refuses_media)
            self._append(message_of(role, pieces, "\n"))

    def _server_call(self, item: McpCallItem | ApprovalRequestItem) -> None:
        if isinstance(item, McpCallItem):
            if item.approval_request_id in self._requests:
                return  # the result of that request, at its place
            outcome = outcome_of(item.output, item.error) or NOT_RUN
        else:
            outcome = self._decided(item)
        step, call_id = step_of(item.id)
        turn = self._assistant_turn(step)
        turn.step = step
        turn.calls.append(ToolCall(call_id, template_name(item.name, item.server_label), item.arguments))
        turn.results.append(outcome.message(call_id))

    def _decided(self, request: ApprovalRequestItem) -> CallOutcome:
        run, decision = self._runs.get(request.id), self._decisions.get(request.id)
        if run is not None:
            return outcome_of(run.output, run.error) or NOT_RUN
        if decision is not None and decision.approve:
            return NOT_RUN
        reason = f" Reason: {decision.reason}" if decision is not None and decision.reason else ""
        return CallOutcome(NOT_APPROVED + reason, CallFault.TOOL)

    def _assistant_turn(self, step: str | None = None) -> _Turn:
        """The assistant's turn that the item belongs to. After results, only a call of the same step belongs to it."""
        if self._turn is not None and self._turn.results and self._turn.step != step:
            self._flush()
        self._turn = self._turn or _Turn()
        return self._turn

    def _append(self, message: ChatMessage) -> None:
        self._flush()
        self.messages.append(message)

    def _flush(self) -> None:
        if self._turn is not None:
            self.messages += [self._turn.message(), *self._turn.results]
            self._turn = None


def _with_paths(name: str, items: Sequence[Raw]) -> Iterator[tuple[str, Raw]]:
    return ((f"{name}[{index}]", raw) for index, raw in enumerate(items))


def _check_results(found: Sequence[tuple[str, Item | None]]) -> None:
    """Raises InvalidRequest for the result of a call that is not in the conversation, where all of it is known: with
    the responses before it, and without items that are left out, which may be calls."""
    if any(item is None for _, item in found):
        return
    calls = {item.call_id for _, item in found if isinstance(item, FunctionCallItem | CustomToolCallItem)}
    for path, item in found:
        if isinstance(item, CallOutputItem) and item.call_id not in calls:
            message = f"{path}.call_id: there is no call '{printable(item.call_id, 100)}' in the conversation"
            raise InvalidRequest(message, param=f"{path}.call_id")


def _is_answer(item: Item | None) -> bool:
    match item:
        case MessageItem(role=role):
            return role == "assistant"
        case _:
            kinds = ReasoningItem | Calls | CompactionItem | McpCallItem | ApprovalRequestItem
            return isinstance(item, kinds)


def _outlives(item: Item | None) -> bool:
    """Returns whether an item stays beside the compaction that follows it."""
    return isinstance(item, ToolsItem) or (isinstance(item, MessageItem) and item.role != "assistant")


def pieces_of(content: Content, path: str, *, refuses_media: bool) -> list[str | Media]:
    """Returns the texts and images of content. Raises InvalidRequest, naming `path[i].field`."""
    if isinstance(content, str):
        return [content]
    found: list[str | Media] = []
    for index, raw in enumerate(content):
        at = f"{path}[{index}]"
        if (part := by_type(raw, PARTS, at)) is not None:
            found.append(_piece(part, at, refuses_media))
    return found


def _piece(part: Part, path: str, refuses_media: bool) -> str | Media:
    match part:
        case TextPart(text=text) | RefusalPart(refusal=text):
            return text
        case ImagePart(image_url=str(url), detail=detail):
            return image_of(url, f"{path}.image_url", detail)
        case ImagePart():
            return media_note("stored image", path, is_refused=refuses_media)
        case FilePart(file_data=str(data), filename=name):
            return file_of(data, f"{path}.file_data", name or "")
        case FilePart(file_url=url):
            return media_note("stored file" if url is None else "remote file", path, is_refused=refuses_media)
        case AudioPart():
            return media_note("audio", path, is_refused=refuses_media)
