"""GET and PATCH /admin/api/settings, POST /admin/api/settings/undo: every setting, and changes of those that a running
server takes. For admins."""

from typing import Any

from litestar import patch
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.ports.settings_file import NewValue
from application.shown_setting import Origin
from application.use_cases.change_settings import Changed
from domain.errors import require
from interfaces.http.answering.answering import json_route
from interfaces.http.incoming.request_context import RequestContext, admins_only, changes_allowed
from interfaces.http.native.requests import PREFIX, admin_get
from interfaces.http.services import Services


class SettingBody(Struct):
    """A setting. `value`: text, number, truth value, list of texts, or null for none; a secret only as set or unset.
    `source`: the file, variable or flag that decided it, by its name. `fixed`: why it cannot be changed here, and where
    it can; empty for one that can."""

    path: str
    value: Any
    origin: Origin
    source: str = ""
    fixed: str = ""


class SettingsBody(Struct, tag_field="object", tag="cairn.settings"):
    """Every setting with its value and what decided it; tables of models only where they have one. `file`: that a
    change is written to; empty where nothing is changed. `can_undo`: it is still as the last change left it.
    `may_change`: false where the settings forbid changes over HTTP."""

    data: list[SettingBody]
    file: str = ""
    can_undo: bool = False
    may_change: bool = False


class ChangeOrder(Struct, forbid_unknown_fields=True):
    """New values by the paths of settings; null takes one out of the file. `dry_run`: only the difference is wanted.
    `digest`: of the dry run whose difference is applied."""

    changes: dict[str, NewValue]
    dry_run: bool = False
    digest: str | None = None


class UndoOrder(Struct, forbid_unknown_fields=True):
    """As in a change."""

    dry_run: bool = False
    digest: str | None = None


class ChangeBody(Struct, tag_field="object", tag="cairn.settings_change"):
    """A change of the configuration file, made (`applied`) or not yet. `digest`: of the file now. `difference`: the
    lines that differ, `- ` before and `+ ` after, below the heading of their table; without secrets. `changed`: the
    settings that have another value. `creates`: there was no file before."""

    file: str
    digest: str
    difference: str
    changed: list[str]
    creates: bool
    applied: bool


def settings_routes(services: Services, may_change: bool) -> list[HTTPRouteHandler]:
    """The handlers. Without `may_change` only the first is not refused."""
    settings, guards = services.settings, [admins_only, changes_allowed(may_change)]

    @admin_get("/settings", "readSettings")
    async def read_settings() -> SettingsBody:
        state = await settings.state()
        data = [SettingBody(one.path, one.value, one.origin, one.source, fixed) for one, fixed in state.shown]
        return SettingsBody(data, state.file, state.can_undo, may_change and bool(state.file))

    at = PREFIX + "/settings"

    @json_route(at, "changeSettings", ChangeOrder, guards=guards, is_cancelled=False, verb=patch, statuses=[409])
    async def change(body: ChangeOrder, context: RequestContext) -> ChangeBody:
        context.client.check_whole()
        return _change_body(await settings.change(body.changes, _digest(body)))

    @json_route(f"{at}/undo", "undoSettings", UndoOrder, guards=guards, is_cancelled=False, statuses=[409])
    async def undo(body: UndoOrder, context: RequestContext) -> ChangeBody:
        context.client.check_whole()
        return _change_body(await settings.undo(_digest(body)))

    return [read_settings, change, undo]


def _digest(body: ChangeOrder | UndoOrder) -> str | None:
    """None for a dry run."""
    require(body.dry_run or body.digest is not None, "digest", "is missing: take it from the answer of a dry_run")
    return None if body.dry_run else body.digest


def _change_body(changed: Changed) -> ChangeBody:
    return ChangeBody(
        changed.file, changed.digest, changed.difference, list(changed.paths), changed.is_new, changed.is_applied
    )
