"""Worker threads for calls that block: few, small, and never in the way of the program's end.

`concurrent.futures` joins its threads when the interpreter ends, so that one call that hangs in
the engine would keep a stopped agent for a minute. These are daemon threads.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]

_STACK_BYTES: Final = 512 * 1024
_sizing = threading.Lock()


class Workers:
    """Up to `limit` threads, started when all others are busy. Used from one event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = 0
        self._unfinished = 0
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, done in a thread; a cancelled caller does not stop it."""
        if self._closed:
            raise RuntimeError("the workers were closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._unfinished += 1
        if self._unfinished > self._threads < self._limit:
            self._start()
        self._jobs.put((loop, future, work))
        return await future

    def close(self) -> None:
        """Lets idle threads end now and busy ones after their call; waits for none."""
        if not self._closed:
            self._closed = True
            for _ in range(self._threads):
                self._jobs.put(None)

    def _start(self) -> None:
        self._threads += 1
        thread = threading.Thread(target=self._work, name="docker-call", daemon=True)
        with _sizing:
            before = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, work = job
            result: Any = None
            fault: BaseException | None = None
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the caller's
                fault = error
            try:
                loop.call_soon_threadsafe(self._finish, future, result, fault)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more
            del job, future, work, result, fault

    def _finish(
        self, future: "asyncio.Future[Any]", result: Any, fault: BaseException | None
    ) -> None:
        self._unfinished -= 1
        if future.done():
            return
        if fault is None:
            future.set_result(result)
        else:
            future.set_exception(fault)
