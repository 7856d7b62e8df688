"""The items that a response went on from, as OpenAI lists them: each with an id, contents as parts, in pages."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from domain.errors import InvalidRequest
from interfaces.http.responses.stored import Turn

Fields = dict[str, Raw]


class ItemPage(Struct, tag_field="object", tag="list"):
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class _Listed(Struct):
    """An item and what stands for its id where it has none."""

    raw: Raw
    suffix: str

    @property
    def id(self) -> str:
        return str(msgspec.json.decode(self.fields()["id"]))

    def fields(self) -> Fields:
        fields = msgspec.json.decode(self.raw, type=Fields)
        completed = {"status": _json("completed"), **fields}
        if "role" not in fields and fields.get("type") != _json("message"):
            return {**completed, "id": _id(fields) or _json(f"item_{self.suffix}")}
        return {
            **completed,
            "type": _json("message"),
            "id": _id(fields) or _json(f"msg_{self.suffix}"),
            "content": _parts(fields),
        }


def item_page(turns: Mapping[str, Turn], *, after: str | None, limit: int, is_descending: bool) -> ItemPage:
    """A page of all that was in the prompt of the last of `turns`, which are in order of time. Raises InvalidRequest
    for an `after` that is not among them."""
    ordered = _listed(turns)
    if is_descending:
        ordered.reverse()
    start = 0
    if after is not None:
        start = next((place for place, item in enumerate(ordered, 1) if item.id == after), 0)
        if not start:
            raise InvalidRequest(f"after: there is no item '{after[:100]}'", param="after")
    data: list[dict[str, Any]] = [item.fields() for item in ordered[start : start + limit]]
    ids = [str(msgspec.json.decode(fields["id"])) for fields in data]
    first, last = (ids[0], ids[-1]) if ids else ("", "")
    return ItemPage(data, first, last, start + limit < len(ordered))


def _listed(turns: Mapping[str, Turn]) -> list[_Listed]:
    found: list[_Listed] = []
    last = list(turns)[-1]
    for id, turn in turns.items():
        found += [_Listed(raw, f"{id}_{at}") for at, raw in enumerate(turn.input)]
        found += [_Listed(raw, "") for raw in turn.output if id != last]
    return found


def _id(fields: Fields) -> Raw | None:
    return fields["id"] if fields.get("id") not in (None, _json(None), _json("")) else None


def _parts(fields: Fields) -> Raw:
    content = fields.get("content", _json(None))
    if not bytes(content).startswith(b'"'):
        return content
    if fields.get("role") == _json("assistant"):
        return Raw(b'[{"type":"output_text","text":%b,"annotations":[]}]' % bytes(content))
    return Raw(b'[{"type":"input_text","text":%b}]' % bytes(content))


def _json(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


__all__ = ("ItemPage", "item_page")
