"""The pictures of docs/images, made anew: `python -m tests.browser.screenshots`, about two minutes.

A server with the embedded models answers for the chat page, and is busy with five requests for the admin page. Numbers
in the pictures are this machine's, so they differ each time; a picture of more than MAX_BYTES is an error.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import httpx

from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from tests.support.browser.admin_page import open_admin, row_of
from tests.support.browser.browser import PHONE, WIDE, chromium, expect, running_browser, watched
from tests.support.browser.chat_page import ChatPage
from tests.support.http.files import pdf
from tests.support.http.servers.live_service import live_service
from tests.support.mlx.demo_chats import demo_chats
from tests.support.patience import PATIENCE_S

FOLDER = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 150_000
TALL = (1280, 940)
NUM_BUSY = 5
SYSTEM = "You watch the boxes of a hut in the hills and know their keys. " * 40
BOXES = "The {} box holds {} keys and the key of the chest is 98. " * 8


def keep(name: str, picture: bytes) -> None:
    if len(picture) > MAX_BYTES:
        raise SystemExit(f"{name} has {len(picture)} bytes, at most {MAX_BYTES} are wanted: make its window smaller")
    (FOLDER / f"{name}.png").write_bytes(picture)
    sys.stdout.write(f"{name}.png: {len(picture):,} bytes\n")


def looks(page: Any, kind: str, wide: tuple[int, int], end: str = "") -> None:
    """Keeps the page in the light, in the dark and on a phone. `end`: what is scrolled to its end."""
    for name, size, scheme in (("light", wide, "light"), ("dark", wide, "dark"), ("phone", PHONE, "light")):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme=scheme)
        if end:
            page.locator(end).evaluate("(one) => one.scrollTo(0, one.scrollHeight)")
            expect(page.locator("#jump")).to_be_hidden()
        keep(f"{kind}-{name}", page.screenshot())


def chat(browser: Any, origin: str) -> None:
    """Conversations that the embedded model answers rightly: a file, its memory, JSON, and a call of a tool."""
    [asked] = demo_chats("tools_ep", 1)
    with watched(browser, origin, size=WIDE) as profile:
        page = profile.open(f"{origin}/chat")
        shown = ChatPage(page)
        page.get_by_text("Sampling, system prompt, tools").click()
        page.get_by_label("Temperature").fill("0")
        page.get_by_text("Sampling, system prompt, tools").click()
        for question in ("Give this as JSON with the keys name, age.\nOmar is 65 years old.", "Hello"):
            shown.asked(question)
            shown.button("New conversation").click()
        shown.asked("My friend is Tina.")
        file = {"name": "hut.pdf", "mimeType": "application/pdf", "buffer": pdf("Remember that the key is 4711.")}
        page.locator("#files").set_input_files(file)
        shown.asked("What is the key?")
        page.get_by_text("Sampling, system prompt, tools").click()
        page.get_by_label("Tools, as a JSON list").fill(json.dumps(asked.tools))
        page.get_by_text("Sampling, system prompt, tools").click()
        shown.asked(asked.messages[-1]["content"])
        shown.answer().locator("details.call summary").click()
        looks(page, "chat", WIDE, end="#scroller")


def admin(browser: Any, origin: str) -> None:
    with httpx.Client(base_url=origin, timeout=PATIENCE_S) as client, watched(browser, origin, size=TALL) as profile:
        answers = [client.post("/v1/chat/completions", json=body(*box, 40)) for box in (("red", 4711), ("green", 815))]
        id = answers[-1].json()["id"]
        page = open_admin(profile)
        page.locator("#recent-filter").fill(id)
        recent = row_of(page, "recent-table", id)
        recent.get_by_role("button", name="Why").click()
        expect(page.locator("tr.broke")).to_contain_text("This prompt")
        keep("admin-why", page.locator("section").filter(has=page.locator("#recent-table")).screenshot())
        with busy(client):
            page.reload()
            expect(page.get_by_text("up for 1 min")).to_be_visible()
            expect(page.get_by_text(f"{NUM_BUSY} running")).to_be_visible()
            expect(page.get_by_text("decodes").first).to_be_visible()
            page.evaluate("window.scrollTo(0, 0)")
            looks(page, "admin", TALL)


@contextmanager
def busy(client: httpx.Client) -> Iterator[None]:
    """Requests that are answered until the block ends."""
    over = Event()

    def ask(number: int) -> None:
        for color in cycle(("blue", "white", "black")):
            long = body(color, number, 200 + 90 * number) | {"stream": True, "ignore_eos": True}
            with client.stream("POST", "/v1/chat/completions", json=long) as answer:
                for _ in answer.iter_lines():
                    if over.is_set():
                        return

    with ThreadPoolExecutor(NUM_BUSY) as threads:
        asking = [threads.submit(ask, number) for number in range(NUM_BUSY)]
        try:
            yield
        finally:
            over.set()
    for one in asking:
        one.result()


def body(color: str, number: int, max_tokens: int) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": BOXES.format(*(color, number) * 8)},
    ]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0}


def main() -> None:
    program = chromium()
    if program is None:
        raise SystemExit("there is no Chromium: install it, or name one with CHROMIUM=/path")
    with TemporaryDirectory() as folder:
        settings = Settings(
            server=ServerSettings(port=0),
            model=ModelSettings(default="cairn-demo", download=False),
            store=StoreSettings(dir=folder, quota=ByteSize(num_bytes=256 << 20)),
        )
        with live_service(settings) as service, running_browser(program) as browser:
            chat(browser, service.base_url)
            admin(browser, service.base_url)


if __name__ == "__main__":
    main()
