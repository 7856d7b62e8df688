"""What is set for all models, where the table of a single one (`model_table`) says nothing else."""

from dataclasses import dataclass

from application.model_table import check_context, check_dtype, check_ttl
from domain.duration import Duration
from domain.errors import require


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which models are served and how they are loaded. `default`: served when a request names none.

    Clients may name `default`, the embedded models, those below `dirs`, those `allowed` (ids or folders that are here
    already), and with `hub_cache` (auto, on or off) whatever lies in the hub's cache. `context_length`: tokens of
    prompt and answer together that are served at most, however many a model could take; None for the model's own.
    `parsers`: how tool calls are read, as MODEL=FAMILY, where a model's template and tokens do not tell or tell wrong.
    `idle_ttl`: a model that nobody used for that long is unloaded; None: only to make room. `generation_config`:
    whether the sampling that a model's generation_config.json advises is for requests that do not say.
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

    @property
    def parser_of(self) -> dict[str, str]:
        """The family of output formats by model id, for the models that `parsers` names."""
        pairs = (item.rpartition("=") for item in self.parsers)
        return {model: family for model, _, family in pairs}

    def __post_init__(self) -> None:
        check_dtype(self.dtype, "model.dtype")
        check_ttl(self.idle_ttl, "model.idle_ttl")
        check_context(self.context_length, "model.context_length")
        require(self.hub_cache in {"auto", "on", "off"}, "model.hub_cache", "must be auto, on or off")
        require(all(self.allowed), "model.allowed", "must not hold an empty name")
        pairs = (item.rpartition("=") for item in self.parsers)
        require(all(model and family for model, _, family in pairs), "model.parsers", "must be like MODEL=FAMILY")
