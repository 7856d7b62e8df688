"""The host that a request was addressed to, as the `Host` header names it (RFC 9110: a name or address, and a port)."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

_PORT = re.compile(r"[0-9]{0,5}")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?")


def host_of(authority: str) -> str | None:
    """Returns the host of `name:port`, in lower case and without a final dot; an address without brackets, in its usual
    form. None for an invalid host."""
    host, port = authority.strip().lower(), ""
    if host.startswith("["):
        host, closed, port = host[1:].partition("]")
        if not closed or (port and not port.startswith(":")) or ":" not in host:
            return None
        port = port.removeprefix(":")
    elif ":" in host:
        host, _, port = host.partition(":")
    if _PORT.fullmatch(port) is None:
        return None
    return bare_host(host)


def bare_host(host: str) -> str | None:
    """As `host_of`, for a name or an address without brackets and port."""
    if (address := address_of(host)) is not None:
        return str(address)
    name = host.lower().removesuffix(".")
    return name if _NAME.fullmatch(name) is not None else None


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the IP address that `host` spells; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def url_of(host: str, port: int) -> str:
    """Returns the URL at which this machine reaches a server that listens on `host`, a wildcard perhaps."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
