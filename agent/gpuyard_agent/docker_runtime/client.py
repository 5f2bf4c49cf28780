"""Calls on the Engine API that answer at once, through the Docker SDK in worker threads."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import docker
import docker.auth
import docker.errors
import requests
import urllib3

from gpuyard_agent.docker_runtime.failures import broke_off, refusal, unavailable
from gpuyard_agent.docker_runtime.streams import Address, StreamBroken, open_stream
from gpuyard_agent.docker_runtime.threads import Workers
from gpuyard_agent.docker_runtime.transport import mend

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 60.0
INSPECT_S: Final = 10.0
WORKERS: Final = 16
"""Nothing is gained past 8 starts at once on a small host; the rest is for calls that hang."""

_SPOKEN: Final = "1.44"
"""The API version spoken where the engine knows it: the oldest that engine 29 still accepts.

Fixed, so that an engine's upgrade changes no answer under us; engines down to 20.10 (1.41) are
spoken to in their own.
"""

# The SDK raises its own errors for answers, and those of the two libraries below for transport.
_FAILURES: Final = (
    docker.errors.DockerException,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    OSError,
)


class EngineClient:
    """One engine's calls. Every failure is `EngineRefused` or `EngineUnavailable`."""

    def __init__(
        self, url: str, *, timeout_s: float = CALL_TIMEOUT_S, workers: int = WORKERS
    ) -> None:
        self.address = Address.of(url)
        self._url = url
        self._timeout_s = timeout_s
        self._limit = workers
        self._workers = Workers(workers)
        self._lock = threading.Lock()
        self._api: docker.APIClient | None = None
        self._version: str | None = None

    async def call(self, work: Callable[[docker.APIClient], T]) -> T:
        """What `work` returns, done in a thread with the SDK's client.

        `work` must be idempotent: it is done once more where a kept connection broke off.
        """
        return await self._workers.run(lambda: self._attempt(work))

    async def api_version(self) -> str:
        """The API version in use, negotiated on the first call to the engine."""
        if self._version is None:
            self._version = await self.call(lambda api: str(api.api_version))
        return self._version

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer of a call that is on the way of every start, without a thread's round trip:
        a fifth of the time that the SDK takes. Not repeated where the connection broke."""
        return await self._request("POST", path, body)

    async def inspect(self, container: str) -> dict[str, Any]:
        """What the engine says of a container, by id or name; one that is stuck answers never."""
        path = f"/containers/{container}/json"
        found: dict[str, Any] = await self._request("GET", path, timeout_s=INSPECT_S)
        return found

    async def kill(self, container_id: str, signal: str) -> None:
        """Sends a signal; holds no thread, since a container that is stuck answers late or never."""
        await self._request("POST", f"/containers/{container_id}/kill?signal={signal}")

    async def remove(self, container_id: str) -> None:
        """Ends and removes a container with its volumes; holds no thread, for the same reason."""
        await self._request("DELETE", f"/containers/{container_id}?v=1&force=1")

    async def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        version, limit_s = await self.api_version(), timeout_s or self._timeout_s
        stream = await open_stream(
            self.address,
            method,
            f"/v{version}{path}",
            body=b"" if body is None else json.dumps(body).encode(),
            head_timeout_s=limit_s,
        )
        try:
            async with asyncio.timeout(limit_s):
                answer = await stream.read_all()
        except (TimeoutError, StreamBroken) as error:
            raise unavailable(error, str(self.address)) from error
        finally:
            stream.close()
        return json.loads(answer) if answer.strip() else None

    async def registry_auth(self, image: str) -> str | None:
        """The header that carries the node's own credentials for that image's registry.

        Read anew each time, so that a 'docker login' counts without a restart of the agent.
        """

        def read(api: docker.APIClient) -> str | None:
            registry, _ = docker.auth.resolve_repository_name(image)
            api.reload_config()
            header = docker.auth.get_config_header(api, registry)
            return None if header is None else header.decode()

        return await self.call(read)

    def reset(self) -> None:
        """Forgets the negotiated version and every kept connection: the engine went away."""
        with self._lock:
            api, self._api, self._version = self._api, None, None
        if api is not None:
            api.close()

    def close(self) -> None:
        """Waits for nothing: a call in flight ends by itself, and nobody gets its answer."""
        self._workers.close()
        self._workers = Workers(self._limit)
        self.reset()

    def _attempt(self, work: Callable[[docker.APIClient], T]) -> T:
        try:
            try:
                return work(self._connected())
            except _FAILURES as error:
                if isinstance(error, docker.errors.APIError) or not broke_off(error):
                    raise
                return work(self._connected())
        except docker.errors.APIError as error:
            status = 0 if error.response is None else error.response.status_code
            raise refusal(status, str(error.explanation or error)) from error
        except _FAILURES as error:
            raise unavailable(error, str(self.address)) from error

    def _connected(self) -> docker.APIClient:
        with self._lock:
            if self._api is None:
                self._api = self._negotiated()
            return self._api

    def _negotiated(self) -> docker.APIClient:
        # A version must be named to make a client, and asking for the engine's needs none.
        with self._client("1.41") as first:
            found: dict[str, Any] = first.version(api_version=False)
        return self._client(spoken_version(found))

    def _client(self, version: str) -> docker.APIClient:
        api = docker.APIClient(
            base_url=self._url,
            version=version,
            timeout=self._timeout_s,
            max_pool_size=self._limit,
        )
        if self.address.path is not None:
            mend(api, self.address.path, timeout_s=self._timeout_s, connections=self._limit)
        # A proxy of the environment is never meant for the engine, and looking for one takes time.
        api.trust_env = False
        return api


def spoken_version(found: dict[str, Any]) -> str:
    """The API version to speak with an engine whose /version answered this."""
    newest = str(found.get("ApiVersion") or "1.41")
    oldest = str(found.get("MinAPIVersion") or "1.12")
    return max(min(_SPOKEN, newest, key=_number), oldest, key=_number)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
