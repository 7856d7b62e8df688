"""The settings of a running server for an admin: shown, changed in the configuration file and at once, and undone.

A change is first a difference between two texts, which the admin sees, and then, with the digest of the text that it
was made from, a new file. It takes effect in the same call, and only for the settings that differ between the two
texts: what somebody wrote into the file besides waits for the next start.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from application.live_settings import LiveSettings, is_changeable, of_model
from application.ports.settings_file import FileText, NewValue, ReadSettings, SettingsFile
from application.services.lane import Lane
from application.settings import NOTHING_SET
from application.shown_setting import Origin, ShownSetting
from application.use_cases.models import Models
from domain.errors import InvalidRequest, ModelNotFound, SettingsChanged, SettingsUnwritable
from domain.ids import ModelId
from domain.printable import printable

MAX_CHANGES = 64
FILE_TIMEOUT_S = 15.0

_NO_FILE = "this server was not started from a configuration file: restart it with other settings"

_log = logging.getLogger("cairn")


@dataclass(frozen=True, slots=True)
class Changed:
    """A change that was made, or would be. `difference`: the lines of the file. `digest`: of the file as it is now, and
    `paths`: the settings whose values differ. `is_new`: there was no file before."""

    file: str
    digest: str
    difference: str
    paths: Sequence[str]
    is_new: bool
    is_applied: bool


@dataclass(frozen=True, slots=True)
class SettingsState:
    """`file`: its path, empty for none. `can_undo`: the file is still as the last change left it."""

    shown: Sequence[tuple[ShownSetting, str]]
    file: str
    can_undo: bool


class ChangeSettings:
    """Event loop only."""

    def __init__(self, live: LiveSettings, file: SettingsFile, models: Models, *, is_used: bool = True) -> None:
        """`is_used`: the settings were read from `file`; without it nothing is changed."""
        self._live, self._file, self._models, self._is_used = live, file, models, is_used
        self._lane = Lane("configuration file", 1, max_pending=8, timeout_s=FILE_TIMEOUT_S)
        self._one_at_a_time = asyncio.Lock()

    def close(self) -> None:
        """Stops the worker, which is not waited for."""
        self._lane.close()

    async def state(self) -> SettingsState:
        """Returns every setting with the reason why it cannot be changed here, which is empty if it can."""
        shown = [(one, self._fixed_by(one)) for one in self._file.shown(self._live.now, self._live.origins)]
        if not self._is_used:
            return SettingsState(shown, "", False)
        can_undo = False
        with suppress(SettingsUnwritable):  # the settings in use are known all the same
            now, before = await self._lane.run(self._file.read), await self._lane.run(self._file.before)
            can_undo = before is not None and before.written == now.digest
        return SettingsState(shown, self._file.path, can_undo)

    async def change(self, changes: Mapping[str, NewValue], digest: str | None) -> Changed:
        """Changes settings, by their paths; None takes a value out of the file. `digest`: of the text that the
        difference was made from; None: nothing is written. Raises InvalidRequest, which names the setting,
        SettingsChanged, SettingsUnwritable, and as `Models.pin` for a model that cannot be pinned."""
        await self._check(changes)
        async with self._one_at_a_time:
            now = await self._read(digest)
            old = await self._lane.run(self._file.understood, now.text)
            text = await self._lane.run(self._file.edited, now.text, changes)
            new = await self._lane.run(self._file.understood, text)
            for path in changes:
                if path in new.shown and (why := self._fixed_by(new.shown[path])):
                    raise InvalidRequest(f"{path} cannot be changed here: {why}", param=path)
            wanted = None if now.text is None and not text else text
            return await self._put(now, wanted, (old, new), is_applied=digest is not None, undoable=True)

    async def undo(self, digest: str | None) -> Changed:
        """Takes the last change back. `digest`: as for `change`. Raises InvalidRequest where there is none,
        SettingsChanged where the file is not as that change left it, and as `change`."""
        self._check_used()
        async with self._one_at_a_time:
            before = await self._lane.run(self._file.before)
            if before is None:
                raise InvalidRequest("there is no change to undo")
            now = await self._read(digest)
            if now.digest != before.written:
                raise SettingsChanged(f"{self._file.path} was changed after the last change made here: edit it by hand")
            old = await self._lane.run(self._file.understood, now.text)
            new = await self._lane.run(self._file.understood, before.text)
            return await self._put(now, before.text, (old, new), is_applied=digest is not None, undoable=False)

    def _fixed_by(self, shown: ShownSetting) -> str:
        """The reason why a setting cannot be changed here; empty if it can."""
        if not is_changeable(shown.path):
            where = shown.source or self._file.path
            return f"it is read at the start: change {where} and restart the server" if self._is_used else _NO_FILE
        if shown.origin in (Origin.ENVIRONMENT, Origin.FLAG):
            return f"{shown.source} decides it: start the server without that"
        return "" if self._is_used else _NO_FILE

    def _check_used(self) -> None:
        if not self._is_used:
            raise InvalidRequest(_NO_FILE)

    async def _check(self, changes: Mapping[str, NewValue]) -> None:
        self._check_used()
        if not 0 < len(changes) <= MAX_CHANGES:
            raise InvalidRequest(f"changes must name 1 to {MAX_CHANGES} settings", param="changes")
        for path, value in changes.items():
            if not is_changeable(path):
                shown = {one.path: one for one in self._file.shown(self._live.now, self._live.origins)}
                why = self._fixed_by(shown[path]) if path in shown else "it is not a setting that can change"
                raise InvalidRequest(f"{printable(path)} cannot be changed here: {why}", param=printable(path))
            model = of_model(path)
            if model is not None and value is not None and await self._models.one(model[0]) is None:
                raise ModelNotFound(f"no model '{printable(model[0])}' here", param=printable(path))

    async def _read(self, digest: str | None) -> FileText:
        now = await self._lane.run(self._file.read)
        if digest not in (None, now.digest):
            raise SettingsChanged(f"{self._file.path} was changed by another program meanwhile: look at it again")
        return now

    async def _put(
        self,
        now: FileText,
        text: str | None,
        read: tuple[ReadSettings, ReadSettings],
        *,
        is_applied: bool,
        undoable: bool,
    ) -> Changed:
        old, new = read
        paths = _differing(old, new)
        difference = await self._lane.run(self._file.difference, now.text, text)
        if is_applied and text != now.text:
            found = [of_model(path) for path in paths]
            ids = [model[0] for model in found if model is not None and model[1] == "pin"]
            on = [id for id in ids if new.settings.models.get(id, NOTHING_SET).pin]
            await self._pin_and_write(on, now, text, undoable=undoable)
            for id in ids:
                if id not in on:
                    await self._unpin(id)
            self._live.take(new.settings, new.origins, paths)
            _log.info("settings were changed by an admin: %s", ", ".join(map(printable, paths)))
        after = await self._lane.run(self._file.read)
        return Changed(self._file.path, after.digest, difference, paths, now.text is None, is_applied)

    async def _pin_and_write(self, ids: Sequence[ModelId], now: FileText, text: str | None, *, undoable: bool) -> None:
        """Loads what is to be pinned before anything is written: a model that cannot be is no setting."""
        pinned = list[ModelId]()
        try:
            for id in ids:
                if not self._models.is_pinned(id):
                    pinned.append(id)
                await self._models.pin(id)
            await self._lane.run(lambda: self._file.write(text, now, undoable=undoable))
        except BaseException:
            for id in pinned:
                await self._unpin(id)
            raise

    async def _unpin(self, id: ModelId) -> None:
        try:
            await self._models.unpin(id)
        except ModelNotFound:
            _log.info("%s is not here, so it was not pinned", printable(id))


def _differing(old: ReadSettings, new: ReadSettings) -> list[str]:
    """The settings that can change and have another value in the second text."""
    paths = dict.fromkeys([*old.shown, *new.shown])
    return [path for path in paths if is_changeable(path) and _value(old, path) != _value(new, path)]


def _value(read: ReadSettings, path: str) -> object:
    return read.shown[path].value if path in read.shown else None
