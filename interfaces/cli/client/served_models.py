"""The models of a running server, as its client sees them."""

from interfaces.cli.client.running_server import NoAnswer, RunningServer

TIMEOUT_S = 10.0


async def with_needed_key(server: RunningServer) -> RunningServer:
    """The server, with its key only if it asks for one. Raises NoAnswer."""
    keyless = RunningServer(server.url)
    try:
        await keyless.ask("/v1/models", timeout_s=TIMEOUT_S)
    except NoAnswer as why:
        if why.http_status == 401 and server.api_key is not None:
            return server
        raise
    return keyless


async def chat_models(server: RunningServer) -> dict[str, str]:
    """The state of each model that chats, by its name. Raises NoAnswer."""
    from interfaces.http.openai.models import ModelListBody

    listed = server.understood(await server.ask("/v1/models", timeout_s=TIMEOUT_S), ModelListBody).data
    return {one.id: one.state for one in listed if "generate" in one.capabilities}


async def default_model(server: RunningServer) -> str:
    """The server's default model; empty if it does not say it to this client, which is no admin then."""
    from interfaces.http.native.settings import SettingsBody

    try:
        settings = server.understood(await server.ask("/admin/api/settings", timeout_s=TIMEOUT_S), SettingsBody)
    except NoAnswer:
        return ""
    return next((str(one.value) for one in settings.data if one.path == "model.default"), "")
