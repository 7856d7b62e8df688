"""Which names a server answers to.

A web page whose name its owner points at this machine (DNS rebinding) is, for the browser, the same site as this server
and may read every answer. It cannot choose the `Host` header though: that holds the page's own name.
"""

from dataclasses import dataclass

from application.settings import ANY, ServerSettings, is_loopback
from domain.host_name import address_of, bare_host, host_of


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Loopback names always. `is_any_address`: other addresses too, since no name server can point those elsewhere."""

    names: frozenset[str]
    is_any_address: bool
    is_anything: bool

    def __contains__(self, authority: str) -> bool:
        """`authority`: a `Host` header, with or without a port."""
        host = host_of(authority)
        if host is None:
            return False
        known = host in self.names or is_loopback(host)
        return known or self.is_anything or (self.is_any_address and address_of(host) is not None)


def allowed_hosts(settings: ServerSettings) -> AllowedHosts:
    """The configured host counts; a server that others can reach answers to all addresses it may be reached at."""
    listed = [*(host for host in settings.allowed_hosts if host != ANY), settings.host]
    names = frozenset(name for host in listed if (name := bare_host(host)) is not None)
    return AllowedHosts(names, not is_loopback(settings.host), ANY in settings.allowed_hosts)


__all__ = ("AllowedHosts", "allowed_hosts")
