"""Settings from file, environment and flags: who wins, what is refused, and how that is said."""

import re
from pathlib import Path

import pytest

from adapters.config.fields import setting_fields
from adapters.config.loader import Flag, InvalidSettings, LoadedSettings, config_file, load_settings, shown_settings
from application.settings import ModelTable, Settings
from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.request.repetition import RepetitionDetection
from domain.request.sampling import SamplingDefaults


class Home:
    """A home directory with one configuration file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / ".config/cairn/config.toml"
        self.environ = {"HOME": str(folder), "PATH": "/bin"}

    def write(self, toml: str) -> "Home":
        self.file.parent.mkdir(parents=True)
        self.file.write_text(toml)
        return self

    def load(self, flags: dict[str, Flag] | None = None, **variables: str) -> LoadedSettings:
        return load_settings(self.environ | variables, flags)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_nothing_given_is_the_defaults(home: Home):
    loaded = home.load()
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_flags_over_environment_over_file_over_defaults(home: Home):
    home.write('[server]\nport = 1\nlog_level = "error"\n[engine]\nqueue = 7\nmax_batch = 2\n')
    loaded = home.load({"server.port": Flag("--port", 3)}, CAIRN_SERVER__PORT="2", CAIRN_ENGINE__QUEUE="8")
    settings = loaded.settings
    assert (settings.server.port, settings.engine.queue, settings.engine.max_batch) == (3, 8, 2)
    assert (settings.server.log_level, settings.server.host) == ("error", "127.0.0.1")
    shown = {path: origin for path, origin in loaded.origins.items() if origin != "default"}
    assert shown == {
        "server.port": "--port",
        "server.log_level": str(home.file),
        "engine.queue": "CAIRN_ENGINE__QUEUE",
        "engine.max_batch": str(home.file),
    }


def test_every_type_from_a_file(home: Home):
    home.write(
        """
        [server]
        keepalive_s = 5
        api_key = "secret"
        max_body = "1MiB"
        [model]
        dirs = ["/a", "/b"]
        download = false
        context_length = 4096
        [store]
        quota = 1000000
        hot_tier = "25%"
        """
    )
    settings = home.load().settings
    assert settings.server.keepalive_s == 5.0
    assert settings.server.max_body == ByteSize(num_bytes=2**20)
    assert settings.model.dirs == ("/a", "/b")
    assert settings.model.download is False
    assert settings.model.context_length == 4096
    assert settings.store.quota == ByteSize(num_bytes=1_000_000)
    assert settings.store.hot_tier == ByteSize(share=0.25)


def test_every_type_from_the_environment(home: Home):
    settings = home.load(
        CAIRN_SERVER__KEEPALIVE_S="2.5",
        CAIRN_MODEL__DIRS="/a:/b",
        CAIRN_MODEL__DOWNLOAD="no",
        CAIRN_MODEL__CONTEXT_LENGTH="",
        CAIRN_CACHE__EXACT="TRUE",
        CAIRN_STORE__QUOTA="16GiB",
    ).settings
    assert settings.server.keepalive_s == 2.5
    assert settings.model.dirs == ("/a", "/b")
    assert settings.model.download is False
    assert settings.model.context_length is None
    assert settings.cache.exact is True
    assert settings.store.quota == ByteSize(num_bytes=16 * 2**30)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[server]\nprot = 1", "server.prot is not a setting (FILE); did you mean server.port?"),
        ("[sever]\nport = 1", "sever is not a setting (FILE); did you mean server?"),
        ("port = 1", "port is not a setting (FILE)"),
        ("server = 1", "server must be a table, written [server], in FILE"),
        ('[server]\nport = "80"', "server.port must be a whole number, not '80' (FILE)"),
        ("[server]\nport = true", "server.port must be a whole number, not True (FILE)"),
        ('[server]\ndrain_grace = "2h"', "server.drain_grace must be in 1s..1h (FILE)"),
        ('[fleet]\npeers = ["10.0.0.2:8000"]', "fleet.peers must be like http://10.0.0.2:8000, without a path (FILE)"),
        ('[fleet]\npeers = ["http://u:p@h:1"]', "fleet.peers must be like http://10.0.0.2:8000, without a path (FILE)"),
        (f"[fleet]\npeers = {['http://h'] * 33}", "fleet.peers must be 32 at most (FILE)"),
        ("[server]\nport = 70000", "server.port must be in 0..65535 (FILE)"),
        ("[server]\nkeepalive_s = true", "server.keepalive_s must be a number, not True (FILE)"),
        ("[server]\napi_key = 12345", "server.api_key must be text, not the value given (FILE)"),
        ('[server]\napi_key = ""', "server.api_key must not be empty (FILE)"),
        ("[model]\ndownload = 1", "model.download must be true or false, not 1 (FILE)"),
        ('[model]\ndirs = "a"', "model.dirs must be a list of texts, not 'a' (FILE)"),
        ("[model]\ndirs = [1]", "model.dirs must be a list of texts, not [1] (FILE)"),
        ("[store]\nquota = -1",
         "store.quota must be a size such as 16GiB, 500MB, 70% or a number of bytes, not -1 (FILE)"),
        ('[engine]\nwired = "on"', "engine.wired must be off, or a size such as 16GiB (FILE)"),
        ('[engine]\nwired = "50%"', "engine.wired must be off, or a size such as 16GiB (FILE)"),
        ('[engine]\nwired = "0"', "engine.wired must be off, or a size such as 16GiB (FILE)"),
        ("[server]\nport = x\n", "FILE: Invalid value (at line 2, column 8)"),
        ("[server]\nport.x = 1", "server.port must be a whole number, not {'x': 1} (FILE)"),
    ],
)  # fmt: skip
def test_file_with_a_mistake_is_refused(home: Home, toml: str, message: str):
    with pytest.raises(InvalidSettings) as refusal:
        home.write(toml).load()
    assert refusal.value.message == message.replace("FILE", str(home.file))


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CAIRN_SERVER__PORT", "http", "server.port must be a whole number, not 'http' (CAIRN_SERVER__PORT)"),
        ("CAIRN_SERVER__PORT", "-1", "server.port must be in 0..65535 (CAIRN_SERVER__PORT)"),
        ("CAIRN_SERVER__KEEPALIVE_S", "nan",
         "server.keepalive_s must be in 0.05..600 seconds (CAIRN_SERVER__KEEPALIVE_S)"),
        ("CAIRN_CACHE__EXACT", "maybe", "cache.exact must be true or false, not 'maybe' (CAIRN_CACHE__EXACT)"),
        ("CAIRN_SERVER__PROT", "1",
         "CAIRN_SERVER__PROT is not a setting (the environment); did you mean CAIRN_SERVER__PORT?"),
        ("CAIRN_PORT", "1", "CAIRN_PORT is not a setting (the environment)"),
        ("CAIRN_ENGINE__BLOCK_SIZE", "512", "CAIRN_ENGINE__BLOCK_SIZE is not a setting (the environment)"),
        ("CAIRN_CONFIG", "/nowhere/c.toml", "CAIRN_CONFIG names /nowhere/c.toml, which does not exist"),
    ],
)  # fmt: skip
def test_variable_with_a_mistake_is_refused(home: Home, variable: str, value: str, message: str):
    with pytest.raises(InvalidSettings) as refusal:
        home.load(**{variable: value})
    assert refusal.value.message.startswith(message)


def test_size_with_a_mistake_says_how_to_write_one(home: Home):
    with pytest.raises(InvalidSettings, match=r"store\.quota must be a size: 'lots' is not a size: write 16GiB"):
        home.load(CAIRN_STORE__QUOTA="lots")


def test_flag_with_a_mistake_names_the_flag(home: Home):
    with pytest.raises(InvalidSettings, match=r"server\.port must be in 0\.\.65535 \(--port\)"):
        home.load({"server.port": Flag("--port", 70_000)})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_address_others_can_reach_needs_a_key(home: Home, host: str):
    flags = {"server.host": Flag("--host", host)}
    with pytest.raises(InvalidSettings, match=r"needs server\.api_key.*\(--host\)"):
        home.load(flags)
    with pytest.raises(InvalidSettings, match=r"needs server\.api_key"):
        home.load(flags, CAIRN_SERVER__API_KEY="")
    assert home.load(flags, CAIRN_SERVER__API_KEY="k").settings.server.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_key(home: Home, host: str):
    assert home.load({"server.host": Flag("--host", host)}).settings.server.host == host


def test_other_variables_of_ours_are_known(home: Home, tmp_path: Path):
    other = tmp_path / "other.toml"
    other.write_text("[server]\nport = 9\n")
    assert home.load(CAIRN_CONFIG=str(other), CAIRN_BLAS="off").settings.server.port == 9


def test_file_follows_the_xdg_variable_unless_it_is_relative():
    assert config_file({"HOME": "/h"}) == Path("/h/.config/cairn/config.toml")
    assert config_file({"HOME": "/h", "XDG_CONFIG_HOME": "/x"}) == Path("/x/cairn/config.toml")
    assert config_file({"HOME": "/h", "XDG_CONFIG_HOME": "x"}) == Path("/h/.config/cairn/config.toml")


def test_every_setting_can_be_set_by_variable_to_its_default(home: Home):
    """No settings class may hold a type that the sources cannot express."""
    defaults = {
        field.variable: str(field.default)
        for field in setting_fields().values()
        if field.type is not tuple and field.default is not None
    }
    loaded = home.load(**defaults)
    assert loaded.settings == Settings()
    assert sum(origin == "default" for origin in loaded.origins.values()) == len(setting_fields()) - len(defaults)


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("CAIRN_SERVER__ALLOWED_HOSTS", "http://a", "server.allowed_hosts must be host names"),
        ("CAIRN_SERVER__ALLOWED_HOSTS", "a:80", "server.allowed_hosts must be host names"),
        ("CAIRN_SERVER__CORS_ORIGINS", "localhost:3000", "server.cors_origins must be origins"),
        ("CAIRN_SERVER__CORS_ORIGINS", "http://a/b", "server.cors_origins must be origins"),
        ("CAIRN_SERVER__CORS_ORIGINS", "https://*.example", "server.cors_origins must be origins"),
        ("CAIRN_SERVER__CORS_ORIGINS", "null", "server.cors_origins must be origins"),
        ("CAIRN_CACHE__SHOW_TEXT", "yes", "cache.show_text must be auto, on or off"),
    ],
)
def test_who_may_ask_is_checked(home: Home, variable: str, text: str, said: str):
    with pytest.raises(InvalidSettings, match=said):
        home.load(**{variable: text})


def test_lists_in_variables_are_separated_by_commas_unless_they_are_paths(home: Home):
    settings = home.load(
        CAIRN_SERVER__CORS_ORIGINS="http://localhost:3000, https://a.example:8443",
        CAIRN_SERVER__ALLOWED_HOSTS="cairn.lan,::1,*",
        CAIRN_MODEL__DIRS="/a,b:/c",
    ).settings
    assert settings.server.cors_origins == ("http://localhost:3000", "https://a.example:8443")
    assert settings.server.allowed_hosts == ("cairn.lan", "::1", "*")
    assert settings.model.dirs == ("/a,b", "/c")


@pytest.mark.parametrize("host", ["*", "https://example.org", "example.org:443", "Example.org", ""])
def test_hosts_of_images_are_names(home: Home, host: str):
    with pytest.raises(InvalidSettings, match=r"server\.image_hosts"):
        home.load({"server.image_hosts": Flag("--image-hosts", (host,))})


def test_tables_of_single_models(home: Home):
    home.write(
        """
        [model]
        idle_ttl = "30m"
        [models."org/Name-4bit"]
        context_length = 8192
        dtype = "bfloat16"
        parser = "hermes"
        salt = "s3cret"
        pin = true
        idle_ttl = "2h"
        sampling = { temperature = 0.6, top_k = 20 }
        repetition_detection = { max_pattern_size = 300 }
        [models.mine]
        base = "org/Name-4bit"
        adapter = "/adapters/mine"
        [models.mine.sampling]
        top_p = 1
        """
    )
    settings = home.load().settings
    assert settings.model.idle_ttl == Duration(1800)
    assert settings.models == {
        "org/Name-4bit": ModelTable(
            context_length=8192,
            dtype="bfloat16",
            parser="hermes",
            salt="s3cret",
            pin=True,
            idle_ttl=Duration(7200),
            sampling=SamplingDefaults(temperature=0.6, top_k=20),
            repetition_detection=RepetitionDetection(300),
        ),
        "mine": ModelTable(base="org/Name-4bit", adapter="/adapters/mine", sampling=SamplingDefaults(top_p=1.0)),
    }
    assert settings.parser_of == {"org/Name-4bit": "hermes"}
    rows = {one.path: one.value for one in shown_settings(settings, {}, "")}
    assert rows['models."org/Name-4bit".salt'] == "set"
    assert rows['models."mine".sampling.top_p'] == 1.0
    assert "s3cret" not in str(rows)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("models = 3", "models must be a table"),
        ("[models]\nname = 3", 'models."name" must be a table'),
        ('[models."x"]\npinned = true', 'models."x".pinned is not a setting'),
        ('[models."x"]\npin = "yes"', 'models."x".pin must be true or false'),
        ('[models."x"]\nsalt = 7', 'models."x".salt must be text, not the value given'),
        ('[models."x"]\ndtype = "int3"', 'models."x".dtype must be auto, float32, bfloat16 or float16'),
        ('[models."x"]\ntask = "chat"', 'models."x".task must be generate, embed or score'),
        ('[models."x"]\nspeculation = "on"', 'models."x".speculation must be auto, off, ngram, mtp or draft'),
        ('[models."x"]\ncontext_length = 1', 'models."x".context_length must be at least 2'),
        ('[models."x"]\nidle_ttl = "0s"', 'models."x".idle_ttl must be in'),
        ('[models."x"]\nbase = "y"', 'models."x".base needs an adapter'),
        (
            '[models."x".repetition_detection]\nmax_pattern_size = 8\nmin_count = 1',
            'models."x".repetition_detection.min_count must be in',
        ),
        ('[models."x"]\nsampling = 1', 'models."x".sampling must be a table'),
        ('[models."x".sampling]\ntemperature = 11', 'models."x".sampling.temperature must be between'),
        ('[models."x".sampling]\ntemprature = 1', 'models."x".sampling.temprature is not a setting'),
        ('[models."x".sampling]\ntop_k = 0.5', 'models."x".sampling.top_k must be a whole number'),
    ],
)
def test_tables_of_models_are_checked(home: Home, toml: str, said: str):
    home.write(toml)
    with pytest.raises(InvalidSettings, match=re.escape(said)):
        home.load()


def test_what_the_page_on_models_shows_loads(home: Home):
    page = (Path(__file__).parents[3] / "docs/models.md").read_text()
    (toml,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    home.write(toml)
    assert set(home.load().settings.models) == {"mlx-community/Qwen3-4B-4bit", "support"}
