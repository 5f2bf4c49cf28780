"""The Docker runtime of one node: `gpuyard_agent.runtime.Runtime` on a shared `DockerEngine`."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import PullProgress
from gpuyard.model.node import NodeReason, RuntimeName
from gpuyard.model.reasons import EndReason
from gpuyard_agent.core.containers import Exit, Seen, Status
from gpuyard_agent.core.launch import AttemptKey, Launch
from gpuyard_agent.core.times import rfc3339
from gpuyard_agent.docker_runtime import labels
from gpuyard_agent.docker_runtime.containers import (
    Container,
    Look,
    not_inspected,
    seen,
    suffices,
)
from gpuyard_agent.docker_runtime.engine import DockerEngine
from gpuyard_agent.docker_runtime.facts import image_digest, status_of, time_of
from gpuyard_agent.docker_runtime.failures import (
    EngineRefused,
    EngineUnavailable,
    is_ulimit_refusal,
    start_exit_code,
)
from gpuyard_agent.docker_runtime.logs import LogReader
from gpuyard_agent.docker_runtime.payload import container_payload
from gpuyard_agent.docker_runtime.verify import check_grant
from gpuyard_agent.runtime import Hold, LogPiece, LogPosition, Reach, unheld

_REMOVE_S: Final = 30.0
_DEFAULT_PATHS: Final = {
    "PATH": "%s:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LD_LIBRARY_PATH": "%s",
}
"""Search paths of an image that sets none, as the engine and the linker have them."""
_NO_IMAGE: Final = (404, 301)
"""The second for a name that is no clean path, as `a//b`: a pull of it says what is wrong."""
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0


class DockerRuntime:
    """One node's containers. Several of these share an engine; `open` before anything else."""

    name: RuntimeName = "docker"

    def __init__(self, engine: DockerEngine, node: str) -> None:
        self._engine = engine
        self._node = node
        self._known: dict[AttemptKey, Container] = {}
        self._digests: dict[str, str | None] = {}
        self._is_open = False
        self._trouble: tuple[str, str] | None = None
        """Code of the present trouble and when it began."""

    async def open(self) -> None:
        if not self._is_open:
            await self._engine.open()
            self._is_open = True

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._engine.close()

    async def version(self) -> str:
        """The engine's own version."""
        return await self._engine.client.version()

    async def info(self) -> dict[str, Any]:
        """The engine's account of itself."""
        return await self._engine.client.info()

    async def problems(self) -> Sequence[NodeReason]:
        try:
            await self._engine.client.ping()
        except EngineUnavailable as fault:
            return [self._reason(fault.node_reason, str(fault))]
        except RuntimeFailure as fault:
            return [self._reason("docker_unreachable", str(fault))]
        self._trouble = None
        return []

    async def seen(self) -> Sequence[Seen]:
        of_node = labels.of_node(self._engine.yard, self._node)
        listed = await self._engine.client.containers(*of_node)
        found = await asyncio.gather(*(self._seen(entry) for entry in listed))
        return [one for one in found if one is not None]

    async def prepare(self, launch: Launch, progress: Callable[[PullProgress], None]) -> None:
        if launch.pull != "always":
            try:
                await self._engine.client.image(launch.image)
                return
            except EngineRefused as refused:
                if refused.status not in _NO_IMAGE:
                    raise
        if launch.pull == "never":
            raise self._never_pulled(launch)
        await self._engine.pulls.pull(launch.image, progress)

    async def launch(self, launch: Launch, hold: Hold = unheld) -> Seen:
        launch = await self._with_search_paths(launch)
        raised = self._engine.grants_ulimits
        payload = container_payload(launch, default_ulimits=raised)
        name = launch.container_name
        try:
            made = await self._engine.client.post(f"/containers/create?name={name}", payload)
        except EngineRefused as refused:
            if refused.status == 409:
                return await self._adopt(launch, hold, refused)
            if refused.reason == EndReason.IMAGE_NOT_FOUND and launch.pull == "never":
                raise self._never_pulled(launch) from refused
            raise
        except EngineUnavailable as fault:
            # The call may have been carried out although its answer never came.
            return await self._adopt(launch, hold, fault)
        return await self._start(launch, hold, str(made["Id"]), raised)

    def reach(self, seen: Seen) -> Reach | None:
        return None if seen.container_id is None else ("container", seen.container_id)

    async def wait(self, key: AttemptKey) -> Exit:
        container = await self._container(key)
        if container is None:
            return Exit(None, rfc3339(time.time()), message="its container does not exist")
        if not container.watched:
            self._engine.exits.watch(container.id)
            inspect = await self._inspect(container.id)
            container.watched = True
            if inspect is not None:
                exit = await self._engine.exits.found(container.id, inspect)
                if exit is not None:
                    return exit
        return await self._engine.exits.wait(container.id)

    async def signal(self, key: AttemptKey, signal: str) -> None:
        container = await self._container(key)
        if container is None:
            return
        try:
            await self._engine.client.kill(container.id, signal)
        except EngineRefused as refused:
            if refused.status != 404 and "is not running" not in refused.text:
                raise

    async def remove(self, key: AttemptKey) -> None:
        container = await self._container(key)
        if container is not None:
            await self._remove(container.id)
            self._engine.exits.forget(container.id)
            self._known.pop(key, None)

    async def logs(self, key: AttemptKey, position: LogPosition) -> AsyncIterator[LogPiece]:
        container = await self._container(key)
        if container is None:
            return
        open_log = partial(self._engine.open_log, container.id)
        reader = LogReader(open_log, tty=container.tty, position=position)
        exit = asyncio.ensure_future(self._surely_ended(key))
        try:
            async with aclosing(reader.pieces(exit)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            exit.cancel()

    async def look(self, launch: Launch) -> Look | None:
        """What the engine made of a launch, its grant checked; None where no container is there.

        Not part of `launch`, which must return quickly: call it right after.
        """
        container = await self._container(launch.key)
        inspect = None if container is None else await self._inspect(container.id)
        if inspect is None:
            return None
        state = inspect["State"]
        return Look(
            pid=int(state["Pid"]) if state.get("Pid") else None,
            image_digest=await self._digest(inspect.get("Image")),
            started_at=time_of(state.get("StartedAt")),
            mismatch=check_grant(inspect, launch),
        )

    async def _adopt(self, launch: Launch, hold: Hold, why: RuntimeFailure) -> Seen:
        """Goes on with the container of that name, if it is this very attempt's."""
        inspect = await self._inspect(launch.container_name)
        if inspect is None:
            # It was removed in between, or never made: the next try decides.
            raise RuntimeFailure(str(why), temporary=True) from why
        found = inspect["Config"].get("Labels") or {}
        if not labels.same_attempt(found, launch.labels):
            raise RuntimeFailure(
                f"the container name {launch.container_name} is taken by {inspect['Id'][:12]}, "
                "which is not this attempt's; remove it with 'docker rm -f'",
                temporary=False,
            ) from why
        state = inspect["State"]
        if state["Status"] == "removing":
            raise RuntimeFailure("its last container is still being removed", temporary=True)
        container = self._remember(launch.key, inspect)
        exit = await self._engine.exits.found(container.id, inspect)
        if exit is None and status_of(state["Status"]) is Status.CREATED:
            return await self._start(launch, hold, container.id, True)
        status = Status.RUNNING if exit is None else Status.EXITED
        digest = await self._digest(container.image_id)
        return seen(launch.key, container, status, digest=digest, exit=exit)

    async def _start(self, launch: Launch, hold: Hold, container_id: str, raised: bool) -> Seen:
        """Starts a container that was never started; a start that docker refused is an end.

        `raised` says that it was made with the limits that the yard adds.
        """
        container = Container(
            container_id, launch.labels.get(labels.SPEC, ""), launch.tty, watched=True
        )
        self._known[launch.key] = container
        self._engine.exits.watch(container_id)
        await hold(("container", container_id))
        try:
            await self._engine.client.post(f"/containers/{container_id}/start")
        except EngineRefused as refused:
            if raised and is_ulimit_refusal(refused.text):
                return await self._without_default_ulimits(launch, hold, container_id)
            code = start_exit_code(refused.text)
            if code is None:
                raise
            exit = Exit(code, rfc3339(time.time()), message=refused.text)
            self._engine.exits.settle(container_id, exit)
            return seen(launch.key, container, Status.EXITED, exit=exit)
        except EngineUnavailable:
            inspect = await self._inspect(container_id)
            if inspect is None or status_of(inspect["State"]["Status"]) is Status.CREATED:
                raise
        container.started_at = rfc3339(time.time())
        return seen(launch.key, container, Status.RUNNING)

    async def _with_search_paths(self, launch: Launch) -> Launch:
        """Puts folders in front of search paths; the image's own value has to be asked for."""
        if not launch.prepend_env:
            return launch
        try:
            image = await self._engine.client.image(launch.image)
        except EngineRefused as refused:
            if refused.status == 404 and launch.pull == "never":
                raise self._never_pulled(launch) from refused
            raise
        pairs = (pair.partition("=") for pair in (image.get("Config") or {}).get("Env") or ())
        own = {name: value for name, _, value in pairs} | launch.env
        paths = {
            name: f"{folders}:{own[name]}" if own.get(name) else _DEFAULT_PATHS[name] % folders
            for name, folders in launch.prepend_env.items()
        }
        return replace(launch, env=launch.env | paths, prepend_env={})

    async def _without_default_ulimits(self, launch: Launch, hold: Hold, container_id: str) -> Seen:
        """Makes the container anew with the job's own limits alone, now and from now on."""
        self._engine.grants_ulimits = False
        await self._remove(container_id)
        self._engine.exits.forget(container_id)
        self._known.pop(launch.key, None)
        return await self.launch(launch, hold)

    async def _surely_ended(self, key: AttemptKey) -> Exit:
        """`wait`, through times in which the engine does not answer."""
        while True:
            try:
                return await self.wait(key)
            except RuntimeFailure:
                await asyncio.sleep(_LAST_RETRY_S)

    async def _seen(self, entry: dict[str, Any]) -> Seen | None:
        """One container of a listing; it is inspected only where the listing does not suffice."""
        key = labels.key_of(entry.get("Labels") or {})
        if key is None:
            return None
        status, container = status_of(str(entry["State"])), self._known.get(key)
        exit = self._engine.exits.known(str(entry["Id"]))
        if (
            container is None
            or container.id != entry["Id"]
            or not suffices(container, status, exit)
        ):
            try:
                async with self._engine.looks:
                    inspect = await self._inspect(entry["Id"])
            except EngineUnavailable:
                return not_inspected(key, entry)
            if inspect is None:
                return None  # removed since the listing
            status = status_of(inspect["State"]["Status"])
            container = self._remember(key, inspect)
            exit = await self._engine.exits.found(container.id, inspect)
        if exit is not None:
            status = Status.EXITED
        async with self._engine.looks:
            digest = await self._digest(container.image_id)
        return seen(key, container, status, digest=digest, exit=exit, word=str(entry["State"]))

    def _remember(self, key: AttemptKey, inspect: dict[str, Any]) -> Container:
        container = self._known.get(key)
        if container is None or container.id != inspect["Id"]:
            config = inspect["Config"]
            spec = (config.get("Labels") or {}).get(labels.SPEC, "")
            container = self._known[key] = Container(inspect["Id"], spec, bool(config.get("Tty")))
        container.started_at = time_of(inspect["State"].get("StartedAt"))
        container.image_id = inspect.get("Image")
        return container

    async def _container(self, key: AttemptKey) -> Container | None:
        """The container of an attempt, looked for by its labels where it is not known."""
        container = self._known.get(key)
        if container is not None:
            return container
        of_attempt = labels.of_attempt(self._engine.yard, self._node, key)
        listed = await self._engine.client.containers(*of_attempt)
        inspect = await self._inspect(listed[0]["Id"]) if listed else None
        return None if inspect is None else self._remember(key, inspect)

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        """What the engine says of a container, None where it knows none of that name."""
        try:
            return await self._engine.client.inspect(name)
        except EngineRefused as refused:
            if refused.status == 404:
                return None
            raise

    async def _digest(self, image_id: str | None) -> str | None:
        if image_id is None:
            return None
        if image_id not in self._digests:
            try:
                image = await self._engine.client.image(image_id)
                self._digests[image_id] = image_digest(image)
            except EngineRefused:
                return image_id  # its last tag was taken away while the container lives
        return self._digests[image_id]

    async def _remove(self, container_id: str) -> None:
        """Removes it however long the engine takes to let go of it, up to half a minute."""
        deadline, delay = time.monotonic() + _REMOVE_S, _FIRST_RETRY_S
        while True:
            try:
                await self._engine.client.remove(container_id)
                return
            except EngineRefused as refused:
                if refused.status == 404:
                    return
                if time.monotonic() > deadline:
                    raise RuntimeFailure(
                        f"container {container_id[:12]} cannot be removed: {refused}",
                        temporary=True,
                    ) from refused
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LAST_RETRY_S)

    def _never_pulled(self, launch: Launch) -> RuntimeFailure:
        return RuntimeFailure(
            f"{launch.image} is not on node {self._node}, and the job says never to pull it: "
            "pull it there, or leave '--pull never' out",
            temporary=False,
            reason=EndReason.IMAGE_NOT_FOUND,
        )

    def _reason(self, code: str, message: str) -> NodeReason:
        if self._trouble is None or self._trouble[0] != code:
            self._trouble = (code, rfc3339(time.time()))
        return NodeReason(code=code, message=message, gpu=None, since=self._trouble[1])
