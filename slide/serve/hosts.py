"""The names by which requests may call a server."""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from slide.utils.checks import shortened

# The header Host: a name or an address, and a port. Nothing else gets into a redirect.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@%\\\s]+)(:[0-9]{0,5})?", re.IGNORECASE)
# What listens at all addresses of a machine.
_EVERYWHERE = {"0.0.0.0", "::"}


class Hosts:
    """Which hosts of requests are good: those of this machine for itself, and some others.

    A page on the internet may have its own name looked up as the address of this machine (DNS
    rebinding); a browser then asks by that name. With an address no page can do so.

    Args:
        names: further names and addresses; ``0.0.0.0`` and ``::`` stand for all addresses; None, or
            ``"*"`` among them: all names, too.

    Raises:
        ValueError: for what is no name and no address.
    """

    def __init__(self, names: Iterable[str] | None):
        self.any = names is None or "*" in (names := [*filter(None, names)])
        self.known = {"localhost"}
        for name in () if self.any else names or ():
            if (found := _HOST.fullmatch(name)) is None and not _is_address(name):
                raise ValueError(f"a host must be a name or an address, not {name!r}")
            self.known.add(_plain(name if found is None else found[1]))
        self.all_addresses = not self.known.isdisjoint(_EVERYWHERE)

    def refusal(self, scope: Any) -> str | None:
        """A sentence about the host of a request of ASGI; None: it is good, or there is none."""
        here = scope.get("server")
        for name, value in scope["headers"]:
            if name != b"host" or not value:
                continue
            said = value.decode("latin-1")
            if (found := _HOST.fullmatch(said)) is None:
                return f"the host {shortened(repr(said))} is no name and no address"
            host = _plain(found[1])
            if not (self.any or self._knows(host) or (here and host == _plain(here[0]))):
                told = shortened(host)
                return f"this server is not called {told}: slide-serve --allow-host {told}"
        return None

    def _knows(self, host: str) -> bool:
        if host in self.known:
            return True
        return _is_address(host) and (self.all_addresses or ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _plain(host: str) -> str:
    """One way to write each name and each address."""
    name = host.strip("[]").lower().removesuffix(".")
    if not _is_address(name):
        return name
    address = ip_address(name)  # Of a network card, as in fe80::1%eth0, and IPv4 as IPv6.
    return str(getattr(address, "ipv4_mapped", None) or address).partition("%")[0]
