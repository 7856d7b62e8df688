"""The list of quantised copies, and which of them may be removed."""

import json
from dataclasses import replace
from pathlib import Path

from application.ports.quantiser import RECEIPT, partial_name
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from tests.support.engines.fake_quantiser import FakeQuantiser
from tests.support.engines.quantise_desk import SOURCES, Desk, ListedModels, ended, refusal, run


def test_the_list_skips_what_is_no_copy(tmp_path: Path) -> None:
    folder, outside = tmp_path / "models", tmp_path / "outside"
    for path in (folder / "plain", folder / "broken", folder / "list", folder / "odd", outside, folder / ".quantising"):
        path.mkdir(parents=True)
    (folder / "file").write_text("x")
    (folder / "broken" / RECEIPT).write_text("{")
    (folder / "list" / RECEIPT).write_text("[]")
    (folder / "hub").mkdir()
    (folder / "hub" / RECEIPT).write_text(json.dumps({"source": {"folder": "/x/models--org--Name/snapshots/c0ffee"}}))
    strange = {"source": 3, "recipe": {}, "bits_per_weight": "4", "quality": {"kl": "low"}, "note": "a\nb"}
    (folder / "odd" / RECEIPT).write_text(json.dumps(strange))
    (outside / RECEIPT).write_text("{}")
    (folder / "link").symlink_to(outside)
    (folder / partial_name("linked")).symlink_to(outside)
    desk = Desk(folder, FakeQuantiser())

    async def work() -> None:
        hub, odd = await desk.quantise.copies()
        assert (hub.name, hub.source) == ("hub", "org/Name")
        assert (odd.name, odd.source, odd.bits_per_weight, odd.quality, odd.note) == ("odd", "", None, None, "a\\nb")
        for name in ("plain", "link", "linked", "quantising", "../outside", ""):
            assert (await refusal(desk.quantise.remove(name)))[0] == "name"
        (folder / "odd" / "inner").symlink_to(outside)
        await desk.quantise.remove("odd")

    run(desk, work())
    assert (outside / RECEIPT).exists()
    assert not (folder / "odd").exists()


def test_a_loaded_copy_is_kept_however_its_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "models")
    copy = ModelSource(ModelId("mine"), str(tmp_path / "link" / "Small-4bit"), note="loaded")
    desk = Desk(tmp_path / "models", FakeQuantiser(), ListedModels([*SOURCES, copy]))

    async def work() -> None:
        await ended(await desk.started())
        param, message = await refusal(desk.quantise.remove("Small-4bit"))
        assert (param, message) == ("name", "mine is loaded: unload it first")
        desk.models.sources[-1] = replace(copy, note="")
        await desk.quantise.remove("Small-4bit")

    run(desk, work())
