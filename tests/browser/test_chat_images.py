"""Images on the chat page: from files, by paste and dropped, shown in the thread, sent with every turn, and kept."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from adapters.fake.engine import FakeModels
from adapters.pillow.decoder import decode
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.browser.chat_page import ChatPage
from tests.support.browser.scripted_chat import ELSE, ScriptedChat
from tests.support.http.hostile_images import picture
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.picture_images import PictureImages, Processors

BLIND = "fake-hybrid"


@pytest.fixture(scope="module")
def script() -> ScriptedChat:
    return ScriptedChat({})


@pytest.fixture(scope="module")
def server(browser: Any, script: ScriptedChat) -> Iterator[FakeService]:
    processor = PictureImages(decode)
    options, models = replace(script.options, images=processor), FakeModels(seeing=[DEFAULT_MODEL])
    with fake_service(options, models=models, images=Processors(processor)) as running:
        yield running


@pytest.fixture
def opened(server: FakeService, script: ScriptedChat, watch: Callable[..., Any]) -> Iterator[Callable[..., ChatPage]]:
    yield lambda **options: ChatPage(watch(server.base_url, **options).open(f"{server.base_url}/chat"))
    script.go_on()


def attach(chat: ChatPage, *files: tuple[str, bytes]) -> None:
    kinds = {"png": "image/png", "jpg": "image/jpeg", "gif": "image/gif", "txt": "text/plain"}
    payload = [{"name": name, "mimeType": kinds[name[-3:]], "buffer": data} for name, data in files]
    chat.page.locator("#files").set_input_files(payload)


def attached(chat: ChatPage) -> Any:
    return chat.page.locator("#composer .pictures img")


def shown(chat: ChatPage) -> Any:
    return chat.thread.locator(".question .pictures img")


def transfer(chat: ChatPage, event: str, selector: str, data: bytes) -> None:
    """Pastes or drops a picture."""
    script = """([event, selector, data]) => {
        const transfer = new DataTransfer();
        const bytes = Uint8Array.from(atob(data), (one) => one.charCodeAt(0));
        transfer.items.add(new File([bytes], "cat.png", {type: "image/png"}));
        const init = {bubbles: true, cancelable: true};
        const made = event === "paste" ? new ClipboardEvent(event, {...init, clipboardData: transfer})
                                       : new DragEvent(event, {...init, dataTransfer: transfer});
        document.querySelector(selector).dispatchEvent(made);
    }"""
    chat.page.evaluate(script, [event, selector, base64.b64encode(data).decode()])


def sent(chat: ChatPage, text: str) -> list[Any]:
    """The contents of the messages that a question sends."""
    with chat.page.expect_request("**/v1/chat/completions") as asked:
        chat.ask(text)
    chat.wait_until_answered()
    return [message["content"] for message in json.loads(asked.value.post_data)["messages"]]


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_a_model_that_reads_text_only_is_given_no_image(opened: Callable[..., ChatPage], event: str) -> None:
    chat = opened()
    chat.page.get_by_label("Model").select_option(BLIND)
    transfer(chat, event, "#question", picture())
    expect(chat.page.locator("#notices")).to_contain_text(
        "This model reads text only. Choose a model that sees images, then attach the image."
    )
    expect(attached(chat)).to_have_count(0)
    chat.page.get_by_label("Model").select_option(DEFAULT_MODEL)
    transfer(chat, event, "#question", picture())
    expect(attached(chat)).to_have_count(1)
    expect(chat.page.locator("#notices")).to_have_text("")


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_images_of_files_are_shown_sent_and_kept(opened: Callable[..., ChatPage], size: tuple[int, int]) -> None:
    chat = opened(size=size)
    attach(chat, ("a.png", picture("PNG", (640, 400))), ("b.jpg", picture("JPEG", (300, 900))))
    expect(attached(chat)).to_have_count(2)
    assert not grave_findings(chat.page)
    assert is_as_wide_as_its_window(chat.page)
    [content] = sent(chat, "What is this?")
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    expect(attached(chat)).to_have_count(0)
    expect(shown(chat)).to_have_count(2)
    assert not grave_findings(chat.page)
    assert is_as_wide_as_its_window(chat.page)
    assert chat.answer().locator(".problem:visible").count() == 0
    chat.page.reload()
    expect(shown(chat)).to_have_count(2)
    first, _, then = sent(chat, "And now?")
    assert (first, then) == (content, "And now?")


@pytest.mark.parametrize(("event", "selector"), [("paste", "#question"), ("drop", "#thread")])
def test_images_are_pasted_and_dropped(opened: Callable[..., ChatPage], event: str, selector: str) -> None:
    chat = opened()
    transfer(chat, event, selector, picture("PNG", (2_000, 500)))
    expect(attached(chat)).to_have_count(1)
    [content] = sent(chat, "")
    [part] = content
    width, height = chat.page.evaluate(
        "async (url) => { const image = new Image(); image.src = url; await image.decode();"
        " return [image.naturalWidth, image.naturalHeight]; }",
        part["image_url"]["url"],
    )
    assert (width, height) == (1568, 392)


def test_what_is_no_image_is_said_and_an_image_can_be_taken_back(opened: Callable[..., ChatPage]) -> None:
    chat = opened()
    attach(chat, ("broken.png", b"no image"), ("a.png", picture()))
    expect(chat.page.locator("#notices")).to_contain_text("broken.png is no image that this browser can show.")
    expect(attached(chat)).to_have_count(1)
    chat.button("Remove image 1").click()
    expect(attached(chat)).to_have_count(0)
    assert sent(chat, "Nothing to see?") == ["Nothing to see?"]


def test_a_model_that_reads_text_only_says_so_and_the_question_can_be_asked_without_the_image(
    opened: Callable[..., ChatPage],
) -> None:
    chat = opened(allows=["400 (Bad Request)"])
    attach(chat, ("a.png", picture()))
    expect(attached(chat)).to_have_count(1)
    chat.page.get_by_label("Model").select_option(BLIND)
    sent(chat, "What is it?")
    problem = chat.answer().locator(".problem")
    expect(problem).to_contain_text("This model reads text only. Choose a model that sees images")
    told = problem.get_by_text(f"{BLIND} cannot see images: it reads text only")
    expect(told).to_be_hidden()
    problem.get_by_text("What the server said").click()
    expect(told).to_be_visible()
    assert grave_findings(chat.page) == []
    chat.thread.locator(".question").hover()
    chat.button("Edit").click()
    chat.thread.get_by_role("button", name="Remove image 1").click()
    with chat.page.expect_request("**/v1/chat/completions") as asked:
        chat.button("Ask again").click()
    chat.wait_until_answered()
    assert [message["content"] for message in json.loads(asked.value.post_data)["messages"]] == ["What is it?"]
    expect(shown(chat)).to_have_count(0)


def test_a_refused_question_is_in_no_later_request(opened: Callable[..., ChatPage]) -> None:
    chat = opened(allows=["400 (Bad Request)"])
    attach(chat, ("a.png", picture()))
    expect(attached(chat)).to_have_count(1)
    chat.page.get_by_label("Model").select_option(BLIND)
    sent(chat, "What is it?")
    expect(chat.answer().locator(".problem")).to_be_visible()
    for num_questions, question in enumerate(("Can you hear me?", "And now?"), start=2):
        contents = sent(chat, question)
        assert "What is it?" not in json.dumps(contents)
        assert contents[-1] == question
        expect(chat.thread.locator(".answer")).to_have_count(num_questions)
        expect(chat.answer()).to_contain_text(ELSE)
    expect(chat.thread.locator(".answer").first).to_contain_text("Later questions are asked without this one.")


def test_pictures_are_made_small_enough_to_be_kept(opened: Callable[..., ChatPage]) -> None:
    chat = opened()
    sizes = chat.page.evaluate(
        """async () => {
            const { readPicture, MAX_CHARS } = await import("/pages/chat/picture.js");
            const canvas = document.createElement("canvas");
            [canvas.width, canvas.height] = [3000, 2000];
            const context = canvas.getContext("2d");
            const noise = context.createImageData(3000, 2000);
            for (let at = 0; at < noise.data.length; at += 1) noise.data[at] = (at * 2654435761) >>> 7;
            context.putImageData(noise, 0, 0);
            const blob = await new Promise((take) => canvas.toBlob(take, "image/png"));
            const { url } = await readPicture(new File([blob], "noise.png", { type: "image/png" }));
            return [url.length, MAX_CHARS];
        }"""
    )
    assert 10_000 < sizes[0] <= sizes[1]
