"""Models from the page: a stranger pulls one of the hub, cancels, continues, loads it, asks it, and deletes it."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from adapters.huggingface.model_folder import embedded_folder
from application.settings import ServerSettings
from domain.ids import ModelId
from domain.models.residency import LoadRoom
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import open_admin, row_of
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.browser.chat_page import ChatPage
from tests.support.http.servers.fake_service import Serving, fake_service
from tests.support.mlx.fake_hub import fake_hub
from tests.support.processes.cli_process import base_url, cairn_process

MODEL = "org/small-chat"


@pytest.fixture
def gate() -> Event:
    return Event()


@pytest.fixture
def origin(browser: Any, tmp_path: Path, gate: Event) -> Iterator[str]:
    """What `make serve` starts, in an empty home, and a hub that has an embedded model under another name."""
    folder = embedded_folder(ModelId("cairn-demo"))
    assert folder is not None
    files = {
        path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in {".json", ".jinja", ".safetensors"}
    }
    with fake_hub({MODEL: files}, gate=gate) as endpoint:
        hub = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
        with cairn_process(tmp_path, ("serve", "--port", "0"), **hub) as cairn:
            yield base_url(cairn)
            gate.set()


def test_a_stranger_pulls_a_model_of_the_hub_loads_it_and_asks_it(origin: str, watch: Any, gate: Event) -> None:
    page = open_admin(watch(origin))
    expect(row_of(page, "models-table", "cairn-demo").first).to_contain_text("demo")
    page.get_by_label("Search the hub").fill("small")
    page.keyboard.press("Enter")
    page.get_by_role("button", name=f"Pull {MODEL}").click()
    expect(page.get_by_role("dialog", name=f"Download {MODEL}?")).to_contain_text("to download;")
    page.get_by_role("button", name="Download", exact=True).click()
    download = row_of(page, "pulls-table", MODEL)
    expect(download).to_contain_text("MiB of")
    assert grave_findings(page) == []
    page.get_by_role("button", name=f"Cancel {MODEL}").click()
    expect(download).to_contain_text("cancelling")
    gate.set()
    expect(download).to_contain_text("cancelled")
    page.get_by_role("button", name=f"Continue {MODEL}").click()
    page.get_by_role("button", name="Download", exact=True).click()
    expect(download).to_contain_text("downloaded")
    model = row_of(page, "models-table", MODEL)
    page.get_by_role("button", name=f"Load {MODEL}").click()
    expect(model.get_by_text("loaded", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name=f"Delete {MODEL}")).to_be_hidden()

    page.get_by_role("link", name="Chat").click()
    chat = ChatPage(page)
    page.get_by_label("Model").select_option(MODEL)
    expect(chat.thread).to_contain_text(MODEL)
    chat.asked("What is the value of pear?\napple: 12\npear: 7")
    expect(chat.answer()).not_to_be_empty()

    page.get_by_role("link", name="Admin").click()
    page.get_by_role("button", name=f"Unload {MODEL}").click()
    page.get_by_role("button", name="Unload", exact=True).click()
    page.get_by_role("button", name=f"Delete {MODEL}").click()
    expect(page.get_by_role("dialog", name=f"Delete {MODEL}?")).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(model).to_have_count(0)


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_suggestions_fit_the_window_and_can_be_read(
    size: tuple[int, int], scheme: str, serving: Serving, watch: Any
) -> None:
    service = serving(fake_service(room=lambda: LoadRoom(48 << 30)))
    page = open_admin(watch(service.base_url, size=size, scheme=scheme))
    expect(row_of(page, "get-table", "Qwen3-0.6B-4bit")).to_contain_text("tokens of context")
    assert is_as_wide_as_its_window(page)
    assert grave_findings(page) == []


def test_a_setting_hides_what_changes_models(serving: Serving, watch: Any) -> None:
    service = serving(fake_service(settings=ServerSettings(port=0, admin=False)))
    page = open_admin(watch(service.base_url))
    expect(row_of(page, "models-table", "fake-hybrid")).to_be_visible()
    expect(page.locator("#get")).to_be_hidden()
    expect(page.locator("#models-table button:visible")).to_have_count(0)


def test_the_empty_chat_names_its_model_and_what_it_can_be_asked(demo: Any, watch: Any) -> None:
    page = watch(demo.base_url).open(f"{demo.base_url}/chat")
    chat = ChatPage(page)
    expect(chat.thread).to_contain_text("cairn-demo answers")
    offered = page.get_by_label("Model").locator("option").all_inner_texts()
    assert not [name for name in offered if "embed" in name]
    page.get_by_label("Model").select_option("cairn-demo-hybrid")
    expect(chat.thread).to_contain_text("cairn-demo-hybrid answers")
    expect(page.get_by_role("list", name="Examples").get_by_role("button")).to_have_count(3)
    assert grave_findings(page) == []
    page.get_by_role("button", name="Remember this: my lucky number is 583.").click()
    chat.wait_until_answered()
    expect(chat.answer()).to_contain_text("583")
