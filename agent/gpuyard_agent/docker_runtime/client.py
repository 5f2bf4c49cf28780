"""Calls on the Engine API that answer at once; streams of an answer are in `streams`."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

from gpuyard_agent.docker_runtime.failures import unavailable
from gpuyard_agent.docker_runtime.streams import Address, StreamBroken, json_of, open_stream

CALL_TIMEOUT_S: Final = 60.0
INSPECT_S: Final = 10.0
_PING_S: Final = 5.0

_SPOKEN: Final = "1.44"
"""The API version spoken where the engine knows it: the oldest that engine 29 still accepts.

Fixed, so that an engine's upgrade changes no answer under us; engines down to 20.10 (1.41) are
spoken to in their own.
"""

T = TypeVar("T")


class EngineClient:
    """One engine's calls. Every failure is `EngineRefused` or `EngineUnavailable`.

    Each call has a connection of its own and no thread, so that a container or an engine that is
    stuck holds up nothing but the calls that ask for it.
    """

    def __init__(self, url: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.address = Address.of(url)
        self._timeout_s = timeout_s
        self._version: str | None = None

    async def api_version(self) -> str:
        """The API version in use, negotiated on the first call to the engine."""
        if self._version is None:
            self._version = spoken_version(
                await self._request("GET", "/version", dict, at_version=False)
            )
        return self._version

    async def ping(self) -> None:
        """Returns when the engine answers, which has less time for it than for other calls."""
        stream = await open_stream(self.address, "GET", "/_ping", head_timeout_s=_PING_S)
        stream.close()

    async def version(self) -> str:
        """The engine's own version, as `20.10.24`."""
        return str((await self._request("GET", "/version", dict)).get("Version") or "")

    async def info(self) -> dict[str, Any]:
        """The engine's account of itself: runtimes, cgroup driver, storage, CDI folders."""
        return await self._request("GET", "/info", dict)

    async def containers(self, *labels: str) -> list[dict[str, Any]]:
        """The engine's list of the containers that carry all these labels, ended ones too."""
        query = urlencode({"all": 1, "filters": json.dumps({"label": labels})})
        return await self._request("GET", f"/containers/json?{query}", list)

    async def image(self, name: str) -> dict[str, Any]:
        """What the engine says of an image, by name, digest or id."""
        return await self._request("GET", f"/images/{quote(name)}/json", dict)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of a call that makes or starts something. It may have been carried out
        although `EngineUnavailable` is raised."""
        return await self._request("POST", path, object, body)

    async def inspect(self, container: str) -> dict[str, Any]:
        """What the engine says of a container, by id or name; one that is stuck answers never."""
        path = f"/containers/{container}/json"
        return await self._request("GET", path, dict, timeout_s=INSPECT_S)

    async def kill(self, container_id: str, signal: str) -> None:
        """Sends a signal; a container that is stuck answers late or never."""
        await self._request("POST", f"/containers/{container_id}/kill?signal={signal}", object)

    async def remove(self, container_id: str) -> None:
        """Ends and removes a container with its volumes; late or never where it is stuck."""
        await self._request("DELETE", f"/containers/{container_id}?v=1&force=1", object)

    def reset(self) -> None:
        """Forgets the negotiated version: the engine went away, and may come back as another."""
        self._version = None

    async def _request(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        at_version: bool = True,
    ) -> T:
        limit_s = timeout_s or self._timeout_s
        if at_version:
            path = f"/v{await self.api_version()}{path}"
        stream = await open_stream(
            self.address,
            method,
            path,
            body=b"" if body is None else json.dumps(body).encode(),
            head_timeout_s=limit_s,
        )
        try:
            async with asyncio.timeout(limit_s):
                return json_of(await stream.read_all(), kind)
        except (TimeoutError, StreamBroken) as error:
            raise unavailable(error, str(self.address)) from error
        finally:
            stream.close()


def spoken_version(found: dict[str, Any]) -> str:
    """The API version to speak with an engine whose /version answered this."""
    newest = str(found.get("ApiVersion") or "1.41")
    oldest = str(found.get("MinAPIVersion") or "1.12")
    return max(min(_SPOKEN, newest, key=_number), oldest, key=_number)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
