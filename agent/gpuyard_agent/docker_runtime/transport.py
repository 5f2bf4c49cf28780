"""The SDK's way to a local socket, with one fault mended: a connect that fails closes its socket.

The SDK leaves it to the garbage collector, which warns; while an engine is away that is every call.
"""

import socket
from typing import Any

import docker
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnection, UnixHTTPConnectionPool


class _Connection(UnixHTTPConnection):  # type: ignore[misc] # the SDK has no types
    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(self.unix_socket)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class _Pool(UnixHTTPConnectionPool):  # type: ignore[misc] # the SDK has no types
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)


class _Adapter(UnixHTTPAdapter):  # type: ignore[misc] # the SDK has no types
    def get_connection(self, url: Any, proxies: Any = None) -> Any:
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _Pool(
                    url, self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
        return pool


def mend(api: docker.APIClient, path: str, *, timeout_s: float, connections: int) -> None:
    """Makes a client of a local socket use the mended way."""
    adapter = _Adapter(f"http+unix://{path}", timeout=timeout_s, max_pool_size=connections)
    api.mount("http+docker://", adapter)
