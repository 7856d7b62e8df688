"""The names of tool servers, which are the first part of their tools' full names: `server__tool`."""

import re

SEPARATOR = "__"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_server_name(name: str) -> bool:
    """True if no tool's full name could be taken for that of another server."""
    return _NAME.fullmatch(name) is not None and SEPARATOR not in name and not name.endswith("_")


def split_full_name(full_name: str) -> tuple[str, str]:
    """The server and its tool; an empty tool if the name has no server."""
    server, _, tool = full_name.partition(SEPARATOR)
    return server, tool
