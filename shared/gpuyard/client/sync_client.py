"""The SDK for programs without an event loop: `AsyncClient` on a thread of its own."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, overload

from gpuyard.client.answers import Applied, DryRun, Forgotten
from gpuyard.client.api import PAGE
from gpuyard.client.async_client import AsyncClient
from gpuyard.client.config import Config
from gpuyard.client.jobs import Job, LogLine
from gpuyard.messages import Event

if TYPE_CHECKING:
    from gpuyard.views.tenants import TenantView
    from gpuyard.views.why import WhyView

T = TypeVar("T")
CANCEL_AGAIN_S: Final = 3.0
"""Longer than closing a connection takes, however it stands."""


class Client:
    """`AsyncClient` with plain calls; use it as a context manager. Safe to use from threads.

    It connects when it is entered, or at the first call. Callbacks run on the client's own
    thread and must not call the client.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        credentials: str | os.PathLike[str] | None = None,
        context: str | None = None,
        config: Config | None = None,
    ) -> None:
        self._client = AsyncClient(
            url=url,
            tenant=tenant,
            user=user,
            credentials=credentials,
            context=context,
            config=config,
        )
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def config(self) -> Config:
        return self._client.config

    def connect(self) -> None:
        """Connect now; without it the first call does. Raises `Unavailable` with the reason."""
        with self._lock:
            if self._loop is not None:
                return
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="gpuyard-client", daemon=True)
            thread.start()
            self._loop, self._thread = loop, thread
            try:
                self._result(loop, self._client.connect())
            except BaseException:
                self._stop()
                raise

    def close(self) -> None:
        """Disconnect; jobs go on. Safe to call twice."""
        with self._lock:
            if self._loop is not None:
                try:
                    self._result(self._loop, self._client.close())
                finally:
                    self._stop()

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def submit(self, spec: Any, *, dry_run: Literal[False] = False) -> Job: ...

    @overload
    def submit(self, spec: Any, *, dry_run: Literal[True]) -> DryRun: ...

    def submit(self, spec: Any, *, dry_run: bool = False) -> Job | DryRun:
        """See `AsyncClient.submit`.

        job = client.submit({"image": "busybox", "command": ["true"], "gpus": 1})
        plan = client.submit({"image": "busybox", "gpus": 8}, dry_run=True)
        """
        if dry_run:
            return self._call(self._client.try_submit(spec))
        return self._call(self._client.submit(spec))

    def run(
        self,
        spec: Any,
        *,
        on_log: Callable[[LogLine], None] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> Job:
        """See `AsyncClient.run`. Ctrl-C ends the call; the job goes on."""
        return self._call(self._client.run(spec, on_log=on_log, on_event=on_event))

    def job(self, id: str) -> Job:
        """See `AsyncClient.job`."""
        return self._call(self._client.job(id))

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """See `AsyncClient.jobs` for the filters."""
        return self._iterate(self._client.jobs(**filters), at_once=PAGE)

    def wait(self, id: str, *, timeout_s: float | None = None) -> Job:
        """See `AsyncClient.wait`."""
        return self._call(self._client.wait(id, timeout_s=timeout_s))

    def logs(
        self,
        id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        rank: int | None = None,
    ) -> Iterator[LogLine]:
        """See `AsyncClient.logs`."""
        return self._iterate(self._client.logs(id, follow=follow, attempt=attempt, rank=rank))

    def events(
        self, id: str | None = None, *, follow: bool = True, all_tenants: bool = False
    ) -> Iterator[Event]:
        """See `AsyncClient.events`."""
        return self._iterate(self._client.events(id, follow=follow, all_tenants=all_tenants))

    def cancel(self, id: str, *, reason: str | None = None) -> Job:
        """See `AsyncClient.cancel`."""
        return self._call(self._client.cancel(id, reason=reason))

    def hold(self, id: str) -> Job:
        """See `AsyncClient.hold`.

        client.hold("train-7")
        """
        return self._call(self._client.hold(id))

    def release(self, id: str) -> Job:
        """See `AsyncClient.release`.

        client.release("train-7")
        """
        return self._call(self._client.release(id))

    def nodes(self) -> list[dict[str, Any]]:
        """See `AsyncClient.nodes`."""
        return self._call(self._client.nodes())

    def node(self, name: str) -> dict[str, Any]:
        """See `AsyncClient.node`."""
        return self._call(self._client.node(name))

    def why(self, id: str) -> "WhyView":
        """See `AsyncClient.why`.

        for change in client.why("train-7")["changes"]:
            print(change["text"])
        """
        return self._call(self._client.why(id))

    def cordon(
        self, node: str, gpu: str | None = None, reason: str | None = None
    ) -> dict[str, Any]:
        """See `AsyncClient.cordon`.

        client.cordon("a100-3", reason="maintenance")
        """
        return self._call(self._client.cordon(node, gpu, reason))

    def uncordon(self, node: str, gpu: str | None = None) -> dict[str, Any]:
        """See `AsyncClient.uncordon`."""
        return self._call(self._client.uncordon(node, gpu))

    def drain(
        self, node: str, reason: str | None = None, *, deadline_s: float | None = None
    ) -> dict[str, Any]:
        """See `AsyncClient.drain`: it returns at once.

        client.drain("a100-3", "new driver", deadline_s=600)
        while client.node("a100-3")["jobs"]:
            time.sleep(2)
        """
        return self._call(self._client.drain(node, reason, deadline_s=deadline_s))

    def forget(self, node: str) -> Forgotten:
        """See `AsyncClient.forget`."""
        return self._call(self._client.forget(node))

    def tenants(self) -> "list[TenantView]":
        """See `AsyncClient.tenants`."""
        return self._call(self._client.tenants())

    def tenant(self, name: str | None = None) -> "TenantView":
        """See `AsyncClient.tenant`.

        print(client.tenant()["used"]["gpus"])
        """
        return self._call(self._client.tenant(name))

    def apply(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Applied:
        """See `AsyncClient.apply`.

        client.apply({"tenant": "team-a", "limits": {"gpus": 4}})
        """
        return self._call(self._client.apply(document, dry_run=dry_run))

    def delete_tenant(self, name: str) -> "TenantView":
        """See `AsyncClient.delete_tenant`."""
        return self._call(self._client.delete_tenant(name))

    def status(self) -> dict[str, Any]:
        """See `AsyncClient.status`."""
        return self._call(self._client.status())

    def version(self) -> dict[str, Any]:
        """See `AsyncClient.version`."""
        return self._call(self._client.version())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self.connect()
        except BaseException:
            work.close()
            raise
        loop = self._loop
        if loop is None:
            work.close()
            raise RuntimeError("the client was closed by another thread")
        return self._result(loop, work)

    @staticmethod
    def _result(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C in the caller's thread must not leave the call behind on ours.
            future.cancel()
            raise

    def _iterate(self, items: AsyncIterator[T], *, at_once: int = 1) -> Iterator[T]:
        """The items as they come, `at_once` of them for each way to the client's thread and back,
        which takes longer than most items do."""

        async def step() -> list[T]:
            taken: list[T] = []
            async for item in items:
                taken.append(item)
                if len(taken) == at_once:
                    break
            return taken

        async def leave() -> None:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

        try:
            while taken := self._call(step()):
                yield from taken
        finally:
            if self._loop is not None:
                self._call(leave())

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            try:
                # What was cancelled closes its connections only when it has its turn.
                asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()
                loop.close()


async def _end_tasks() -> None:
    """Cancels until all have ended: an interrupted connect may swallow one cancellation, and what
    closes it may be cut short by another."""
    own = asyncio.current_task()
    while going := asyncio.all_tasks() - {own}:
        for task in going:
            task.cancel()
        ended, _ = await asyncio.wait(going, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*ended, return_exceptions=True)
