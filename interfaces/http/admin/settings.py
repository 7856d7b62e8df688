"""GET /admin/api/settings: every setting with its value and what decided it; secrets only as set or unset."""

from typing import Any

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.ports.shown_setting import Origin, ShownSetting
from interfaces.http.admin.reading import admin_get
from interfaces.http.services import Services


class SettingBody(Struct):
    """`path`: as in the configuration file, `server.port`. `value`: as it would be written there; null for none.
    `source`: the file, variable or flag that decided it, by its name; empty for a default."""

    path: str
    value: Any
    origin: Origin
    source: str


class SettingsBody(Struct, tag_field="object", tag="cairn.settings"):
    data: list[SettingBody]


def settings_route(services: Services, error_type: type[Struct]) -> HTTPRouteHandler:
    @admin_get("/settings", "readSettings", error_type)
    async def read_settings() -> SettingsBody:
        return SettingsBody([_setting(one) for one in services.admin.settings()])

    return read_settings


def _setting(shown: ShownSetting) -> SettingBody:
    return SettingBody(shown.path, shown.value, shown.origin, shown.source)
