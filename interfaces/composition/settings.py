"""The settings of a running server: their holder, and the file in which an admin changes them."""

import os
from collections.abc import Callable, Collection

from adapters.config.loader import LoadedSettings, config_file
from adapters.config.settings_file import TomlSettingsFile
from adapters.system.log_level import set_log_level
from adapters.system.private_file import private_file
from application.live_settings import LiveSettings
from application.settings import Settings
from application.use_cases.change_settings import ChangeSettings
from application.use_cases.models import Models


def live_settings(settings: Settings, loaded: LoadedSettings | None) -> LiveSettings:
    """The holder. A change of the log's level takes effect in this process."""
    live = LiveSettings(settings, loaded.origins if loaded is not None else None)
    level = settings.server.log_level

    def follow() -> None:
        nonlocal level
        if live.now.server.log_level != level:  # otherwise that of a program that embeds Cairn stays
            level = live.now.server.log_level
            set_log_level(level)

    live.follow(follow)
    return live


def image_hosts(live: LiveSettings) -> Callable[[], Collection[str]]:
    return lambda: live.now.server.image_hosts


def build_change_settings(live: LiveSettings, loaded: LoadedSettings | None, models: Models) -> ChangeSettings:
    """The use case. `loaded`: None for settings that were made in code, which nobody changes."""
    read = loaded or LoadedSettings(live.now, {}, {})
    file = TomlSettingsFile(config_file(read.environ or os.environ), read.with_text, private_file)
    return ChangeSettings(live, file, models, is_used=loaded is not None)
