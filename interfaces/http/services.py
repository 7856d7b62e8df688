"""The use cases and small ports of the application that the HTTP side uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from application.ports.clock import Clock, IdSource
from application.ports.engine import Engine
from application.ports.event_sink import EventSink
from application.ports.tool_servers import ToolServers
from application.services.cache_readings import CacheReadings
from application.services.documents import Documents
from application.services.live_figures import LiveFigures
from application.services.recent_log import RecentLog
from application.services.request_timelines import RequestTimelines
from application.services.text_side.answers.open_requests import OpenRequests
from application.use_cases.cached_prompts import CachedPrompts
from application.use_cases.change_settings import ChangeSettings
from application.use_cases.check_health import CheckHealth
from application.use_cases.embed import Embed
from application.use_cases.generate import Generate
from application.use_cases.hub_models import HubModels
from application.use_cases.manage_keys import ManageKeys
from application.use_cases.models import Models
from application.use_cases.peers import Peers
from application.use_cases.quantise import Quantise
from application.use_cases.tokenize import Tokenize
from application.use_cases.tool_loop import ToolLoop


@dataclass(frozen=True, slots=True)
class Services:
    """The use cases and ports of the HTTP side. `default_model` answers requests that name none. `trace_context`
    returns the W3C headers (`traceparent`, ...) of the span that is current where it is called. `metrics_text` is the
    body of GET /metrics and its content type, for an Accept header; without it there is no such route. `tool_servers`:
    None where none is configured. `tool_loop`: None where `tool_servers` is."""

    default_model: str
    generate: Generate
    embed: Embed
    models: Models
    hub: HubModels
    quantise: Quantise
    check_health: CheckHealth
    cached_prompts: CachedPrompts
    tokenize: Tokenize
    engine: Engine
    documents: Documents
    ids: IdSource
    clock: Clock
    events: EventSink
    figures: LiveFigures
    timelines: RequestTimelines
    requests: OpenRequests
    readings: CacheReadings
    log: RecentLog
    settings: ChangeSettings
    client_keys: ManageKeys
    peers: Peers
    trace_context: Callable[[], Mapping[str, str]] = dict
    tool_loop: ToolLoop | None = None
    metrics_text: Callable[[str], tuple[bytes, str]] | None = None
    tool_servers: ToolServers | None = None
