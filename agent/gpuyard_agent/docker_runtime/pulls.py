"""Pulling images: one pull for all who want it, ended by silence and not by size."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import PullProgress
from gpuyard.model.reasons import EndReason
from gpuyard_agent.docker_runtime.client import EngineClient
from gpuyard_agent.docker_runtime.credentials import Credentials
from gpuyard_agent.docker_runtime.failures import (
    EngineRefused,
    EngineUnavailable,
    pull_refusal,
)
from gpuyard_agent.docker_runtime.streams import StreamBroken, open_stream, read_json

IDLE_S: Final = 300.0
"""A large image may take hours; an engine that says nothing for this long has got stuck."""
_EVERY_S: Final = 0.2

Progress = Callable[[PullProgress], None]


class Meter:
    """Bytes of all layers of one pull, summed from the engine's lines."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def take(self, line: Mapping[str, Any]) -> PullProgress | None:
        """The sum after this line, None where the line changed nothing."""
        layer, status = str(line.get("id") or ""), str(line.get("status") or "")
        detail = line.get("progressDetail") or {}
        before = self._done.get(layer), self._total.get(layer)
        if status == "Downloading" and detail.get("total"):
            self._total[layer] = int(detail["total"])
            self._done[layer] = int(detail.get("current") or 0)
        elif status in ("Download complete", "Pull complete") and layer in self._total:
            self._done[layer] = self._total[layer]
        if before == (self._done.get(layer), self._total.get(layer)):
            return None
        return PullProgress(
            done_bytes=sum(self._done.values()), total_bytes=sum(self._total.values())
        )


@dataclass(eq=False, slots=True)
class _Pull:
    listeners: list[Progress] = field(default_factory=list)
    last: PullProgress = field(default_factory=lambda: PullProgress(done_bytes=0, total_bytes=0))
    task: "asyncio.Task[None] | None" = None


class Pulls:
    """The pulls of one engine."""

    def __init__(self, client: EngineClient, *, idle_s: float = IDLE_S) -> None:
        self._client = client
        self._idle_s = idle_s
        self._credentials = Credentials()
        self._running: dict[str, _Pull] = {}

    async def pull(self, image: str, progress: Progress) -> None:
        """Pulls `image`, or joins the pull of it that runs; ends with the last who waits.

        `progress` is told at once that it began: a registry may take long to name the layers.
        Raises RuntimeFailure with an image's reason, `no_space` or `invalid`.
        """
        pull = self._running.get(image)
        if pull is None:
            pull = self._running[image] = _Pull()
            pull.task = asyncio.create_task(self._run(image, pull))
        progress(pull.last)
        pull.listeners.append(progress)
        assert pull.task is not None
        try:
            await asyncio.shield(pull.task)
        finally:
            pull.listeners.remove(progress)
            if not pull.listeners:
                pull.task.cancel()
                if self._running.get(image) is pull:
                    del self._running[image]

    async def close(self) -> None:
        """Gives every pull up; the engine keeps the layers that are whole."""
        tasks = [pull.task for pull in self._running.values() if pull.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, image: str, pull: _Pull) -> None:
        try:
            await self._pull(image, pull)
        except EngineRefused as refused:
            raise pull_refusal(refused.status, refused.text) from refused
        except EngineUnavailable as fault:
            if not isinstance(fault.__cause__, TimeoutError):
                raise
            raise _stuck(image, f"no answer within {self._idle_s:g} s") from fault
        except TimeoutError as fault:
            raise _stuck(image, f"no progress for {self._idle_s:g} s") from fault
        except (StreamBroken, ValueError) as fault:
            raise _stuck(image, f"the engine broke it off ({fault})") from fault
        finally:
            if self._running.get(image) is pull:
                del self._running[image]

    async def _pull(self, image: str, pull: _Pull) -> None:
        credentials = await self._credentials.header_for(image)
        version = await self._client.api_version()
        stream = await open_stream(
            self._client.address,
            "POST",
            f"/v{version}/images/create?{urlencode(image_parts(image))}",
            headers={"X-Registry-Auth": credentials} if credentials else {},
            head_timeout_s=self._idle_s,
        )
        meter, told = Meter(), 0.0
        loop = asyncio.get_running_loop()
        try:
            async for line in read_json(stream, idle_s=self._idle_s):
                if "error" in line:
                    raise pull_refusal(200, _error_of(line))
                pull.last = meter.take(line) or pull.last
                if loop.time() >= told + _EVERY_S:
                    told = loop.time()
                    _tell(pull)
        finally:
            stream.close()
        _tell(pull)


def image_parts(image: str) -> dict[str, str]:
    """The query that pulls exactly this image: without a tag an engine would pull all tags."""
    name, _, digest = image.partition("@")
    # A colon before the last slash is that of a registry's port.
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = name, ""
    # Name, tag and digest at once: the digest decides.
    return {"fromImage": repository, "tag": digest or tag or "latest"}


def _error_of(line: Mapping[str, Any]) -> str:
    detail = line.get("errorDetail") or {}
    return str(detail.get("message") or line["error"])


def _tell(pull: _Pull) -> None:
    for listener in list(pull.listeners):
        listener(pull.last)


def _stuck(image: str, what: str) -> RuntimeFailure:
    return RuntimeFailure(
        f"the pull of {image} failed: {what}", temporary=True, reason=EndReason.IMAGE_PULL_FAILED
    )
