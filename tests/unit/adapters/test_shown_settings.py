"""Settings as people are shown them: every one, what decided it, and no secret."""

from adapters.config.fields import setting_fields
from adapters.config.loader import Flag, load_settings, shown_settings
from application.settings import CacheSettings, ModelTable, ServerSettings, Settings
from application.shown_setting import Origin

FILE = "/home/one/config.toml"


def test_every_setting_with_what_decided_it() -> None:
    loaded = load_settings(
        {"HOME": "/nowhere", "CAIRN_ENGINE__QUEUE": "7"},
        {"server.port": Flag("--port", 3), "model.default": Flag("MODEL", "x"), "store.kind": Flag("--store", "off")},
    )
    origins = {**loaded.origins, "engine.max_batch": FILE}
    found = {one.path: one for one in shown_settings(loaded.settings, origins, FILE)}
    assert list(found) == list(setting_fields())
    decided = {path: (one.origin, one.source) for path, one in found.items() if one.origin is not Origin.DEFAULT}
    assert decided == {
        "server.port": (Origin.FLAG, "--port"),
        "model.default": (Origin.FLAG, "MODEL"),
        "store.kind": (Origin.FLAG, "--store"),
        "engine.queue": (Origin.ENVIRONMENT, "CAIRN_ENGINE__QUEUE"),
        "engine.max_batch": (Origin.FILE, FILE),
    }
    assert (found["server.port"].value, found["server.max_body"].value) == (3, "32 MiB")


def test_secrets_are_set_or_unset() -> None:
    secret = "s3cret"
    settings = Settings(
        server=ServerSettings(api_key=secret),
        cache=CacheSettings(salt=secret),
        models={"m": ModelTable(salt=secret, pin=True)},
    )
    found = shown_settings(settings, {}, FILE)
    assert secret not in repr(found)
    reported = {one.path: (one.value, one.origin) for one in found if one.origin is not Origin.DEFAULT}
    assert reported == {
        "server.api_key": ("set", Origin.CODE),
        "cache.salt": ("set", Origin.CODE),
        'models."m".salt': ("set", Origin.FILE),
        'models."m".pin': (True, Origin.FILE),
    }
