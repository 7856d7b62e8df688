"""Quantised copies from the page: planned, made with progress, cancelled, continued, and removed."""

from pathlib import Path
from threading import Event
from typing import Any

import pytest

from application.settings import ServerSettings
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import open_admin, row_of
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.engines.fake_quantiser import FakeQuantiser, ModelsWithCopies
from tests.support.http.servers.fake_service import Serving, fake_service

COPY = "fake-hybrid-6bit"


def test_a_copy_is_planned_made_cancelled_continued_and_removed(tmp_path: Path, serving: Serving, watch: Any) -> None:
    gate = Event()
    quantiser = FakeQuantiser(gate=gate)
    service = serving(fake_service(models=ModelsWithCopies(tmp_path), quantises=(quantiser, str(tmp_path))))
    page = open_admin(watch(service.base_url))
    form = page.locator("#quantise-form")
    page.get_by_role("combobox", name="Source").select_option("fake-hybrid")
    form.get_by_label("Form or recipe").select_option("6 bits")
    form.get_by_role("button", name="Show the plan").click()
    dialog = page.get_by_role("dialog", name="Quantise fake-hybrid?")
    expect(dialog).to_contain_text(f"{COPY}: 834 B, 6.10 bits a weight (99 % 6 bits, 1 % plain)")
    assert grave_findings(page) == []
    dialog.get_by_role("button", name="Start").click()
    job = row_of(page, "quantise-jobs", COPY)
    expect(job).to_contain_text("writing: 2.0 KiB of 4.0 KiB, 50 %")
    assert grave_findings(page) == []
    page.get_by_role("button", name=f"Cancel {COPY}").click()
    expect(job).to_contain_text("cancelling")
    gate.set()
    expect(job).to_contain_text("cancelled")
    expect(row_of(page, "copies-table", COPY)).to_contain_text("not finished")
    page.get_by_role("button", name=f"Continue {COPY}").click()
    copy = row_of(page, "copies-table", COPY)
    expect(copy).to_contain_text("0.0123")
    expect(copy).to_contain_text("95.4 %")
    expect(copy).to_contain_text("source 12.10")
    expect(page.locator("#quantise-jobs")).to_be_hidden()
    page.get_by_role("button", name=f"Load {COPY}").click()
    expect(row_of(page, "models-table", COPY).get_by_text("loaded", exact=True)).to_be_visible()
    page.get_by_role("button", name=f"Unload {COPY}").click()
    page.get_by_role("button", name="Unload", exact=True).click()
    page.get_by_role("button", name=f"Remove {COPY}").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(copy).to_have_count(0)


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "dark"), (PHONE, "light")])
def test_a_refusal_is_told_and_the_section_fits_the_window(
    size: tuple[int, int], scheme: str, tmp_path: Path, serving: Serving, watch: Any
) -> None:
    quantiser = FakeQuantiser()
    service = serving(fake_service(models=ModelsWithCopies(tmp_path), quantises=(quantiser, str(tmp_path))))
    service.client.post("/admin/api/quantise", json={"model": "fake-hybrid"})
    page = open_admin(watch(service.base_url, size=size, scheme=scheme, allows=["status of 400"]))
    form = page.locator("#quantise-form")
    form.get_by_label("Form or recipe").select_option("measured")
    form.get_by_label("Most bytes of the weights").fill("many")
    form.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator("#quantise-status")).to_contain_text("size must be a number of bytes")
    page.get_by_text("Name, groups, checks").click()
    expect(form.locator("option:disabled").filter(has_text="is quantised already")).to_have_count(1)
    assert is_as_wide_as_its_window(page)
    assert grave_findings(page) == []


def test_a_setting_hides_it(serving: Serving, watch: Any) -> None:
    service = serving(fake_service(settings=ServerSettings(port=0, admin=False)))
    page = open_admin(watch(service.base_url))
    expect(row_of(page, "models-table", "fake-hybrid")).to_be_visible()
    expect(page.locator("#quantise")).to_be_hidden()
