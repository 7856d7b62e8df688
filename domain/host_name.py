"""The host that a request was addressed to, as the `Host` header names it (RFC 9110: a name or address, and a port);
and the network that it came from."""

import re
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

_PORT = re.compile(r"[0-9]{0,5}")
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,252}[a-z0-9_])?")

_UNICAST = IPv6Network("2000::/3")
"""All of IPv6 that hosts of the internet have. Addresses that embed IPv4 ones lie outside, but for those of two
tunnels: 6to4, and Teredo in the block of protocols."""

_SPECIAL = tuple(map(ip_network, ("2001::/23", "2002::/16", "3fff::/20", "192.88.99.0/24")))


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


def https_host(url: str) -> str | None:
    """Returns the host of `https://HOST/PATH`, as `bare_host` does; None for a URL of another form: with a user, a port
    other than that of https, a fragment, or characters that URLs do not have."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    is_plain = url.isascii() and url.isprintable() and " " not in url and "@" not in parts.netloc and not parts.fragment
    if parts.scheme != "https" or port not in (None, 443) or not is_plain:
        return None
    return bare_host(parts.hostname or "")


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the IP address that `host` spells; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def network_of(host: str) -> str:
    """Returns the network by which a client is counted: an IPv6 address's /64, of which one client commonly has all
    addresses; else `host`. IPv4 addresses that IPv6 sockets report (`::ffff:192.0.2.1`) are IPv4."""
    address = address_of(host)
    if not isinstance(address, IPv6Address) or address.is_loopback:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((int(address) >> 64 << 64, 64)))


def is_public(address: str) -> bool:
    """Returns whether an address can be reached from the internet: none of this machine, its network or its tunnels."""
    found = ip_address(address)
    is_unicast = found in _UNICAST if isinstance(found, IPv6Address) else not found.is_multicast
    return is_unicast and found.is_global and not any(found in network for network in _SPECIAL)


def url_of(host: str, port: int) -> str:
    """Returns the URL at which this machine reaches a server that listens on `host`, a wildcard perhaps."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
