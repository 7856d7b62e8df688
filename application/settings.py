"""The settings, as frozen values with checked ranges. `adapters/config` reads them from their sources."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from application.cache_settings import CacheSettings as CacheSettings
from application.fleet_settings import FleetSettings
from application.mcp_settings import McpSettings as McpSettings
from application.mcp_settings import ToolServerSettings as ToolServerSettings
from application.setting_checks import FIXED as FIXED
from application.setting_checks import check_choice
from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.errors import InvalidRequest, require
from domain.host_name import address_of, bare_host
from domain.memory.kv_bits import GROUP_SIZE, KVBits
from domain.memory.kv_bits import OFF as KV_OFF
from domain.models.model_card import parsed_alias
from domain.request.repetition import RepetitionDetection
from domain.request.sampling import SamplingDefaults
from domain.speculation.drafter import SpeculationMode

ANY = "*"
"""A value that stands for every host or every origin in a list of them."""

OFF = "off"
"""The value of `engine.wired` for no limit of Cairn's own."""

DTYPES = ("auto", "float32", "bfloat16", "float16")
SPECULATION_MODES = tuple(one.value for one in SpeculationMode)

_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s,?#*]+")

_SHARED = re.compile(r"rediss?://([^/@:?#\s]+@)?([^/@:?#\s\[\]]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?(/[0-9]{1,5})?/?")
_SHARED_FORM = (
    "must be like redis://HOST:6379/0, or rediss:// for TLS, with USER@ before the host at most; a password belongs in"
    " store.shared_password (CAIRN_STORE__SHARED_PASSWORD)"
)

MIN_AGE_S = 3600
MAX_AGE_S = 3650 * 86_400
MIN_MEMORY_BYTES = 64 << 20


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server on `host`. A name other than localhost may lead anywhere."""
    address = address_of(host)
    return address.is_loopback if address is not None else host == "localhost"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP side. A non-loopback `host` needs an `api_key` or a `key_file`.

    `key_file`: where the keys of clients are, besides `api_key`, which is an admin's without limits. `allowed_hosts`:
    names that requests may be addressed to besides this machine's own. `cors_origins`: web pages that may send
    requests, as `https://host:port`; none by default. `image_hosts`: hosts from which images are fetched that requests
    name by URL; none by default. `max_body`: the bound on the body of one request. `aliases`:
    names that clients may use for a model, as NAME=MODEL, or NAME for the default model; `*` and `?` in a name stand
    for anything. Served models answer to their own names, and other names are refused. By default only Claude's: Claude
    Code's subagents request them whatever model is configured. `admin`: admins may change the models over HTTP: pull,
    delete, load, unload and pin them. `drain_grace`: the time for which requests that arrive after SIGTERM are still
    answered while /health/ready is 503; None: none are taken.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    key_file: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    log_level: str = "info"
    log_format: str = "plain"
    keepalive_s: float = 15.0
    max_body: ByteSize = ByteSize(num_bytes=32 * 2**20)
    image_hosts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ("claude-*",)
    admin: bool = True
    drain_grace: Duration | None = None

    @property
    def model_of(self) -> dict[str, str]:
        """The model by pattern of names, in the order of `aliases`."""
        return dict(map(parsed_alias, self.aliases))

    def __post_init__(self) -> None:
        require(0 <= self.port < 65_536, "server.port", "must be in 0..65535")
        for host in self.allowed_hosts:
            require(
                host == ANY or bare_host(host) is not None,
                "server.allowed_hosts",
                f"must be host names without scheme and port, or {ANY}",
            )
        for host in self.image_hosts:
            require(
                bare_host(host) == host,
                "server.image_hosts",
                "must be host names in lower case, without scheme and port",
            )
        for origin in self.cors_origins:
            require(
                origin == ANY or _ORIGIN.fullmatch(origin) is not None,
                "server.cors_origins",
                f"must be origins such as http://localhost:3000, without a path, or {ANY}",
            )
        require(all(name for name in self.model_of), "server.aliases", "must be like NAME=MODEL or NAME")
        check_choice(self.log_level, "server.log_level", "debug", "info", "warning", "error")
        check_choice(self.log_format, "server.log_format", "plain", "json")
        require(0.05 <= self.keepalive_s <= 600, "server.keepalive_s", "must be in 0.05..600 seconds")
        grace_s = self.drain_grace.num_seconds if self.drain_grace is not None else 1
        require(1 <= grace_s <= 3600, "server.drain_grace", "must be in 1s..1h")
        require(self.api_key != "", "server.api_key", "must not be empty")
        require(self.key_file != "", "server.key_file", "must not be empty")
        require(
            self.needs_key or is_loopback(self.host),
            "server.host",
            f"{self.host} can be reached from other machines and needs server.api_key or server.key_file;"
            " without one keep to 127.0.0.1, ::1 or localhost",
        )

    @property
    def needs_key(self) -> bool:
        """True if clients must send a key."""
        return self.api_key is not None or self.key_file is not None


MIN_TTL_S, MAX_TTL_S = 1, 365 * 86_400


@dataclass(frozen=True, slots=True)
class ModelTable:
    """The settings of one model: a `[models."NAME"]` table of the configuration file. `context_length`, `dtype`,
    `idle_ttl`, `speculation`, `draft`, `kv_bits` and `kv_group_size`: as in `[model]`; None for the value there.
    `task`: a Capability value, None for what its files say. `parser`: the family of output formats. `salt` separates
    the prefix cache of this name from other names of the same weights. `pin`: loaded at the start, and never unloaded
    for other models. `base`: the model whose files are served, by default NAME itself; `adapter`: folder of a LoRA
    adapter over them. `sampling`: defaults of requests. `repetition_detection`: the repetition that ends an answer, of
    requests that name none."""

    context_length: int | None = None
    dtype: str | None = None
    task: str | None = None
    speculation: str | None = None
    draft: str | None = None
    parser: str = ""
    salt: str = ""
    pin: bool = False
    idle_ttl: Duration | None = None
    kv_bits: str | None = None
    kv_group_size: int | None = None
    base: str = ""
    adapter: str = ""
    sampling: SamplingDefaults = SamplingDefaults()
    repetition_detection: RepetitionDetection = RepetitionDetection()

    def __post_init__(self) -> None:
        check_context(self.context_length, "context_length")
        check_ttl(self.idle_ttl, "idle_ttl")
        check_choice(self.dtype, "dtype", *DTYPES)
        check_choice(self.task, "task", "generate", "embed", "score")
        check_choice(self.speculation, "speculation", *SPECULATION_MODES)
        check_kv(self.kv_bits, self.kv_group_size, "")
        require(not self.base or bool(self.adapter), "base", "needs an adapter: another name alone is server.aliases")


def check_context(context_length: int | None, name: str) -> None:
    require(
        context_length is None or 2 <= context_length < 2**31,
        name,
        "must be at least 2 tokens: one of a prompt and one of an answer",
    )


def check_kv(bits: str | None, group_size: int | None, table: str) -> None:
    KVBits.parse(KV_OFF if bits is None else bits, GROUP_SIZE if group_size is None else group_size, f"{table}kv_bits")


def check_ttl(ttl: Duration | None, name: str) -> None:
    require(ttl is None or MIN_TTL_S <= ttl.num_seconds <= MAX_TTL_S, name, "must be in 1s..365d")


NOTHING_SET = ModelTable()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The models that are served, and how they are loaded. `default`: for requests that name none.

    Clients may name `default`, the embedded models, those below `dirs`, those `allowed` (ids or folders on this
    machine), and with `hub_cache` (auto, on or off) every model in the hub's cache. `context_length`: the limit on
    tokens of prompt and answer together; None for the model's own. `parsers`: the format of tool calls, as
    MODEL=FAMILY, for models whose template and tokens do not show it. `idle_ttl`: a model that is idle for that long is
    unloaded; None: only to make room. `generation_config`: the sampling of a model's generation_config.json is the
    default of requests. `kv_bits`: in which keys and values of full attention are kept, `off` for as they are computed,
    in groups of `kv_group_size`. `speculation`: the drafters that models may use, a SpeculationMode value. `draft`: the
    draft model, a model's name or folder, for models of its vocabulary; empty for none.
    """

    default: str = "cairn-demo"
    dirs: tuple[str, ...] = ()
    dtype: str = "auto"
    idle_ttl: Duration | None = None
    download: bool = True
    context_length: int | None = None
    hub_cache: str = "auto"
    allowed: tuple[str, ...] = ()
    parsers: tuple[str, ...] = ()
    generation_config: bool = True
    speculation: str = SpeculationMode.AUTO.value
    draft: str = ""
    kv_bits: str = KV_OFF
    kv_group_size: int = GROUP_SIZE

    @property
    def parser_of(self) -> dict[str, str]:
        """The family of output formats by model id, for the models that `parsers` names."""
        pairs = (item.rpartition("=") for item in self.parsers)
        return {model: family for model, _, family in pairs}

    def __post_init__(self) -> None:
        check_choice(self.dtype, "model.dtype", *DTYPES)
        check_ttl(self.idle_ttl, "model.idle_ttl")
        check_context(self.context_length, "model.context_length")
        check_choice(self.speculation, "model.speculation", *SPECULATION_MODES)
        check_kv(self.kv_bits, self.kv_group_size, "model.")
        check_choice(self.hub_cache, "model.hub_cache", "auto", "on", "off")
        require(all(self.allowed), "model.allowed", "must not hold an empty name")
        pairs = (item.rpartition("=") for item in self.parsers)
        require(all(model and family for model, _, family in pairs), "model.parsers", "must be like MODEL=FAMILY")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The compute side. `prefill_grid` 0 means the measured best of the device (512 on CPU, 2048 on a GPU). `memory`:
    the limit of the computing process, in the memory of its device; None: the memory that is free at the start, less a
    tenth. `wired`: memory that Metal keeps from being paged out, `off` or a size."""

    backend: str = "mlx"
    max_batch: int = 32
    queue: int = 256
    prefill_grid: int = field(default=0, metadata=FIXED)
    block_size: int = field(default=256, metadata=FIXED)
    memory: ByteSize | None = None
    wired: str = OFF

    def __post_init__(self) -> None:
        check_choice(self.backend, "engine.backend", "mlx", "fake")
        require(self.wired_bytes >= 0, "engine.wired", "must be off, or a size such as 16GiB")
        if self.memory is not None:
            num_bytes, share = self.memory.num_bytes, self.memory.share
            require(num_bytes is None or num_bytes >= MIN_MEMORY_BYTES, "engine.memory", "must be at least 64MiB")
            require(share is None or 0 < share <= 1, "engine.memory", "must be more than 0%")
        require(1 <= self.max_batch <= 512, "engine.max_batch", "must be in 1..512")
        require(1 <= self.queue <= 100_000, "engine.queue", "must be in 1..100000")

    @property
    def wired_bytes(self) -> int:
        """The size of `wired`; 0 for off. -1: it is not one."""
        if self.wired == OFF:
            return 0
        try:
            return ByteSize.parse(self.wired).num_bytes or -1
        except InvalidRequest:
            return -1


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The persistent tier, the hot tier in front of it, and a store behind it that other servers share. `kind`: lmdb,
    memory or off. `dir` empty: the default.

    `max_age`: records that were not used for that long are evicted; None: only for room. Stored responses
    lie in memory unless `kind` is lmdb, and go after `max_age`, or 30 days.

    `shared`: the address of a RESP server, `redis://HOST:6379/0`, or `rediss://` for TLS; empty for none.
    `shared_key_file`: the secret by which records of the fleet are authenticated; only on loopback it may be missing.
    `shared_nodes`: hosts of a cluster beside that one, as the cluster names them; no other gets password or records.
    `shared_password`: for the server. `shared_deadline_s`: the time that a request may lose to it, beyond what
    computing takes.
    """

    kind: str = "lmdb"
    dir: str = ""
    quota: ByteSize | None = None
    hot_tier: ByteSize = ByteSize(share=0.1)
    max_age: Duration | None = None
    shared: str = ""
    shared_nodes: tuple[str, ...] = ()
    shared_key_file: str | None = None
    shared_password: str | None = None
    shared_deadline_s: float = field(default=0.05, metadata=FIXED)

    def __post_init__(self) -> None:
        check_choice(self.kind, "store.kind", "lmdb", "memory", "off")
        if self.max_age is not None:
            require(MIN_AGE_S <= self.max_age.num_seconds <= MAX_AGE_S, "store.max_age", "must be in 1h..3650d")
            require(self.kind == "lmdb", "store.max_age", "needs store.kind = lmdb: nothing else outlives the process")
        if self.shared:
            require(self.kind != "off", "store.shared", "needs a local store: store.kind must be lmdb or memory")
            found = _SHARED.fullmatch(self.shared)
            require(found is not None and int((found[3] or ":1")[1:]) < 65_536, "store.shared", _SHARED_FORM)
            hosts = (urlsplit(self.shared).hostname or "", *self.shared_nodes)
            require(
                bool(self.shared_key_file) or all(map(is_loopback, hosts)),
                "store.shared_key_file",
                f"must name a file with the fleet's key: {', '.join(hosts)} can be reached from other machines, and"
                " what they write there would be taken for state of this server",
            )


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """OpenTelemetry; exporters themselves follow the standard OTEL_* variables. `metrics`: serve /metrics."""

    enabled: bool = True
    metrics: bool = True


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The metrics of /metrics. `vllm_names`: those that routers read have vLLM's names too."""

    vllm_names: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. `models`: the tables of single models, by name."""

    server: ServerSettings = field(default_factory=ServerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    mcp: McpSettings = field(default_factory=McpSettings)
    models: Mapping[str, ModelTable] = field(default_factory=dict[str, ModelTable])

    @property
    def parser_of(self) -> dict[str, str]:
        """The family of output formats by model id, where it is set."""
        return self.model.parser_of | {name: table.parser for name, table in self.models.items() if table.parser}

    @property
    def is_private(self) -> bool:
        """True if only programs of this machine can send requests: on loopback, without keys, and not opened to hosts
        or pages of any name."""
        server = self.server
        is_open = ANY in server.allowed_hosts or ANY in server.cors_origins
        return not server.needs_key and is_loopback(server.host) and not is_open

    @property
    def shows_text(self) -> bool:
        """True if clients may read the prompts of other clients. `auto`: only on a private server."""
        return self.cache.show_text == "on" or (self.cache.show_text == "auto" and self.is_private)

    @property
    def serves_hub_cache(self) -> bool:
        """True if clients may name any model in the hub's cache. `auto`: only on a private server."""
        return self.model.hub_cache == "on" or (self.model.hub_cache == "auto" and self.is_private)
