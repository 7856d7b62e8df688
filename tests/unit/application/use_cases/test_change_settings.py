"""The order in which a change is made: what can fail comes before anything is written, and is taken back."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from adapters.config.loader import Flag, load_settings
from adapters.config.settings_file import TomlSettingsFile
from adapters.system.private_file import private_file
from application.live_settings import LiveSettings
from application.use_cases.change_settings import Changed, ChangeSettings
from application.use_cases.models import Models
from domain.errors import DomainError, ModelLoadFailed, SettingsUnwritable
from domain.ids import ModelId

TEXT = "[server]\nport = 9000\n"
PIN = 'models."m".pin'


class PinnedModels:
    """The part of Models that settings use. `fails`: no model can be loaded."""

    def __init__(self, *, fails: bool = False) -> None:
        self.pinned: set[ModelId] = set()
        self._fails = fails

    async def one(self, id: ModelId) -> object:
        return id

    def is_pinned(self, id: ModelId) -> bool:
        return id in self.pinned

    async def pin(self, id: ModelId) -> None:
        if self._fails:
            raise ModelLoadFailed("it does not fit")
        self.pinned.add(id)

    async def unpin(self, id: ModelId) -> None:
        self.pinned.discard(id)


@contextmanager
def full_disk(path: Path, _mode: int) -> Iterator[BinaryIO]:
    if path.suffix == ".undo":
        with private_file(path) as stream:
            yield stream
        return
    raise OSError(28, "no space left")


class Desk:
    def __init__(self, folder: Path, models: PinnedModels, *, is_full: bool = False, text: str = TEXT) -> None:
        self.path = folder / "config.toml"
        self.path.write_text(text)
        flags = {"server.log_level": Flag("--log-level", "error")}
        loaded = load_settings({"CAIRN_CONFIG": str(self.path)}, flags)
        self.live = LiveSettings(loaded.settings, loaded.origins)
        file = TomlSettingsFile(self.path, loaded.with_text, full_disk if is_full else private_file)
        self.use = ChangeSettings(self.live, file, cast(Models, models))

    def change(self, **changes: object) -> Changed:
        wanted = {name.replace("__", "."): value for name, value in changes.items()}

        async def work() -> Changed:
            dry = await self.use.change(wanted, None)  # type: ignore[arg-type]
            return await self.use.change(wanted, dry.digest)  # type: ignore[arg-type]

        return asyncio.run(work())


def test_a_model_that_cannot_be_loaded_is_not_written(tmp_path: Path) -> None:
    desk = Desk(tmp_path, PinnedModels(fails=True))
    with pytest.raises(ModelLoadFailed):
        desk.change(**{PIN: True})
    assert desk.path.read_text() == TEXT
    assert not desk.live.table(ModelId("m")).pin


def test_what_cannot_be_written_is_not_in_effect_and_keeps_the_last_undo(tmp_path: Path) -> None:
    models = PinnedModels()
    desk = Desk(tmp_path, models, is_full=True)
    kept = tmp_path / "config.toml.undo"
    kept.write_text("the last one")
    with pytest.raises(SettingsUnwritable, match="no space left"):
        desk.change(**{PIN: True, "server.aliases": []})
    assert (desk.path.read_text(), kept.read_text()) == (TEXT, "the last one")
    assert models.pinned == set()
    assert desk.live.now.server.aliases == ("claude-*",)


def test_what_somebody_wrote_besides_waits_for_the_next_start(tmp_path: Path) -> None:
    desk = Desk(tmp_path, PinnedModels())
    desk.path.write_text(f'{TEXT}image_hosts = ["a.org"]\n')
    assert desk.change(server__aliases=[]).paths == ["server.aliases"]
    assert (desk.live.now.server.aliases, desk.live.now.server.image_hosts) == ((), ())


def test_a_file_with_which_no_server_starts_is_not_changed(tmp_path: Path) -> None:
    desk = Desk(tmp_path, PinnedModels())
    broken = f"{TEXT}prot = 1\n"
    desk.path.write_text(broken)
    with pytest.raises(DomainError, match=r"server\.prot is not a setting"):
        desk.change(server__aliases=[])
    assert desk.path.read_text() == broken


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles" / "cairn.toml"
    target.parent.mkdir()
    desk = Desk(tmp_path, PinnedModels())
    desk.path.rename(target)
    desk.path.symlink_to(target)
    desk.change(server__aliases=[])
    assert desk.path.is_symlink()
    assert "aliases = []" in target.read_text()


def test_followers_act_after_the_holder_has_changed(tmp_path: Path) -> None:
    desk = Desk(tmp_path, PinnedModels())
    seen: list[tuple[str, ...]] = []
    desk.live.follow(lambda: seen.append(desk.live.now.server.aliases))
    desk.change(server__aliases=["x"])
    assert seen == [("x",)]
    assert desk.live.origins["server.aliases"] == str(desk.path)
