"""Under which address this host is reached from others, as far as the way to the bus tells."""

import socket
from urllib.parse import urlsplit


def source_address(url: str) -> str | None:
    """The address from which this host speaks to the bus; None where none of its servers' names
    can be looked up. Nothing is sent; a look-up may take seconds."""
    for server in url.split(","):
        parts = urlsplit(server.strip() if "//" in server else f"//{server.strip()}")
        try:
            found = socket.getaddrinfo(parts.hostname, parts.port or 4222, type=socket.SOCK_DGRAM)
        except (OSError, ValueError):
            continue
        for family, kind, protocol, _, target in found:
            address = _towards(family, kind, protocol, target)
            if address is not None:
                return address
    return None


def _towards(family: int, kind: int, protocol: int, target: tuple[object, ...]) -> str | None:
    try:
        with socket.socket(family, kind, protocol) as endpoint:
            endpoint.connect(target)
            return str(endpoint.getsockname()[0])
    except OSError:
        return None
