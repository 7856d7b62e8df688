"""The items that a response went on from, as OpenAI lists them: each with an id, contents as parts, in pages."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from domain.errors import InvalidRequest
from interfaces.http.responses.stored import Item, StoredResponse


class ItemPage(Struct, tag_field="object", tag="list"):
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


def listed_items(chain: Sequence[StoredResponse]) -> list[Item]:
    """Everything that was in the prompt of the last response, the oldest first."""
    *before, last = chain
    items = [item for one in before for item in (*_listed(one), *one.response["output"])]
    return [*items, *_listed(last)]


def item_page(items: Sequence[Item], *, after: str | None, limit: int, is_descending: bool) -> ItemPage:
    """Raises InvalidRequest for an `after` that is not among them."""
    ordered = list(reversed(items)) if is_descending else list(items)
    start = 0
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise InvalidRequest(f"after: there is no item '{after[:100]}'", param="after")
        start = ids.index(after) + 1
    data = ordered[start : start + limit]
    first, last = (data[0]["id"], data[-1]["id"]) if data else ("", "")
    return ItemPage(data, first, last, start + limit < len(ordered))


def _listed(one: StoredResponse) -> list[Item]:
    return [_with_id(item, f"{one.response['id']}_{index}") for index, item in enumerate(one.input)]


def _with_id(item: Item, suffix: str) -> Item:
    if "role" not in item and item.get("type") != "message":
        return {"status": "completed", **item, "id": item.get("id") or f"item_{suffix}"}
    is_answer = item.get("role") == "assistant"
    content = item.get("content")
    if isinstance(content, str):
        part: dict[str, Any] = {"type": "output_text" if is_answer else "input_text", "text": content}
        if is_answer:
            part["annotations"] = []
        content = [part]
    id = item.get("id") or f"msg_{suffix}"
    return {"status": "completed", **item, "type": "message", "id": id, "content": content}


__all__ = ("ItemPage", "item_page", "listed_items")
