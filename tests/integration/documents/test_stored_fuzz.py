"""Hundreds of random requests that store, go on from, refer to, list, delete and clear responses, against a dictionary.

Items are of every kind, known and not, written as no client would. Each answer is the one that the dictionary says, and
pages of items end, each item under an id of its own.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from interfaces.http.responses.conversation import LEFT_OUT
from tests.support.effort import scaled
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.stores.kill_documents import open_documents

PATH = "/v1/responses"
NUM_STEPS = 250
TEXTS = ("hi", "", " ", "\x00", "é漢🌍", '"}],', "\\u00e9\\", "x" * 3_000, "<|im_end|>")
JUNK: tuple[Any, ...] = (None, True, 0, -1, 10**40, 1e308, "", [], {}, [[[[]]]], {"a": {"b": [None]}}, "x" * 2_000)
UNKNOWN = ("bomb", "MESSAGE", "web_search", "message ", "function_call_outputs", "\x00")


@dataclass
class Conversation:
    """What is stored of one response. `num_items`: in its prompt, its own and those before."""

    previous: str | None
    num_items: int
    output: list[str] = field(default_factory=list[str])


class Client:
    """Sends, and keeps what must be there."""

    def __init__(self, service: FakeService, seed: int) -> None:
        self.service = service
        self.random = Random(seed)
        self.stored: dict[str, Conversation] = {}
        self.gone: list[str] = ["resp-nobody"]

    def step(self) -> None:
        weights = {self.create: 8, self.read: 3, self.page: 3, self.delete: 2, self.clear: 0.05}
        self.random.choices(list(weights), list(weights.values()))[0]()

    def create(self) -> None:
        items, wrong = self._items()
        body: dict[str, Any] = {"input": items}
        previous = self._some_id() if self.random.random() < 0.5 else None
        if previous is not None:
            body["previous_response_id"] = previous
        param = "previous_response_id" if previous is not None and not self._is_whole(previous) else wrong
        content = self._written(body)
        response = self.service.client.post(PATH, content=content, headers={"content-type": "application/json"})
        if param is not None:
            assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
            return
        assert response.status_code == 200, (response.text, body)
        answer = response.json()
        before = self.stored[previous] if previous is not None else None
        num_before = before.num_items + len(before.output) if before is not None else 0
        output = [item["id"] for item in answer["output"]]
        self.stored[answer["id"]] = Conversation(previous, num_before + len(items), output)

    def read(self) -> None:
        id = self._some_id()
        response = self.service.client.get(f"{PATH}/{id}")
        assert response.status_code == (200 if id in self.stored else 404)
        assert id not in self.stored or [item["id"] for item in response.json()["output"]] == self.stored[id].output

    def page(self) -> None:
        id, order = self._some_id(), self.random.choice(["asc", "desc"])
        found: list[Any] = []
        more: dict[str, Any] = {}
        while len(found) < 10_000:
            params = {"limit": self.random.choice([1, 3, 100]), "order": order, **more}
            response = self.service.client.get(f"{PATH}/{id}/input_items", params=params)
            assert response.status_code == (200 if id in self.stored else 404), response.text
            if response.status_code == 404:
                return
            listed = response.json()
            found += listed["data"]
            if not listed["has_more"]:
                break
            more = {"after": listed["last_id"]}
        if self._is_whole(id):
            assert len(found) == self.stored[id].num_items
        assert len({item["id"] for item in found}) == len(found)

    def delete(self) -> None:
        id = self._some_id()
        assert self.service.client.delete(f"{PATH}/{id}").status_code == (200 if id in self.stored else 404)
        self._forget(id)

    def clear(self) -> None:
        self.service.clock.advance(1)
        assert self.service.client.post("/v1/cache/clear", json={"salt": ""}).status_code == 200
        self.service.clock.advance(1)
        for id in list(self.stored):
            self._forget(id)

    def _forget(self, id: str) -> None:
        if self.stored.pop(id, None) is not None:
            self.gone.append(id)

    def _is_whole(self, id: str | None) -> bool:
        while id is not None and id in self.stored:
            id = self.stored[id].previous
        return id is None

    def _some_id(self) -> str:
        known = list(self.stored)[-8:]
        return self.random.choice(known if known and self.random.random() < 0.8 else self.gone[-8:])

    def _items(self) -> tuple[list[Any], str | None]:
        """Some, the last a user's, and the field that is wrong with them: the first unknown type, else the first
        reference that leads nowhere."""
        items: list[Any] = []
        unknown = missing = None
        for index in range(self.random.randrange(5)):
            text, at = self.random.choice(TEXTS), f"input[{index}]"
            match self.random.randrange(7):
                case 0:
                    items.append({"type": self.random.choice(UNKNOWN), "x": self.random.choice(JUNK)})
                    unknown = unknown or f"{at}.type"
                case 1 | 2:
                    left_out = self.random.choice(sorted(LEFT_OUT))
                    items.append({"type": left_out, "id": f"own_{text[:3]}", "x": self.random.choice(JUNK)})
                case 3:
                    items.append({"type": "function_call", "call_id": "c", "name": "f", "arguments": text})
                case 4:
                    items.append({"role": "user", "content": [{"type": "input_text", "text": text}], "x": [[]]})
                case 5:
                    items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]})
                case _:
                    there = [item for one in self.stored.values() for item in one.output]
                    id = self.random.choice([*there[-8:], "msg_resp-nobody_0"])
                    items.append({"type": "item_reference", "id": id})
                    missing = missing or (None if id in there else f"{at}.id")
        return [*items, {"role": "user", "content": self.random.choice(TEXTS)}], unknown or missing

    def _written(self, body: Any) -> bytes:
        """With odd spaces and escapes."""
        style = self.random.choice([{"indent": 3}, {"separators": (" ,\t", " :\n")}, {"ensure_ascii": False}])
        return json.dumps(body, **style).encode()


@pytest.mark.parametrize("seed", range(scaled(4)))
def test_random_conversations_agree_with_a_dictionary(tmp_path: Path, seed: int) -> None:
    options = FakeOptions(reply=reply_with("Hi"), context_length=1 << 20)
    with fake_service(options, documents=open_documents(tmp_path)) as service:
        client = Client(service, seed)
        for _ in range(NUM_STEPS):
            client.step()
        num_documents = service.client.get("/v1/cache/stats").json()["documents"]["documents"]
        assert num_documents == sum(2 + len(one.output) for one in client.stored.values())
        assert len(client.stored) + len(client.gone) > 50
        assert not service.events.of("FaultObserved")
