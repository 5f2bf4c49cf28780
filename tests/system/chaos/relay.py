"""A network link that tests can cut: a TCP relay on loopback between one daemon and the servers.

A cut link loses nothing that is on its way, it only stops moving: as a broken route does, until
either end gives up. The relays of a run share one thread.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")
_PIECE_BYTES: Final = 64 * 1024


class Relays:
    """The thread of all relays; `close` it at the end, which breaks what is still connected."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []
        self._is_over = asyncio.Event()
        self._begun: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._run(),), name="relays", daemon=True
        )
        self._thread.start()
        self.loop = self._begun.result(10)

    async def _run(self) -> None:
        """Returning ends the tasks of every connection, and each breaks its own on the way out."""
        self._begun.set_result(asyncio.get_running_loop())
        await self._is_over.wait()
        for server in self._servers:
            server.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def link(self, ports: list[int]) -> "Link":
        """A link to each of these ports."""
        link = Link(self.loop, ports)
        self._servers += self.call(link.open())
        return link

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join(10)


class Link:
    """One daemon's way to the servers: `ports` are what it connects to instead of theirs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, upstream: list[int]) -> None:
        self._loop = loop
        self._upstream = upstream
        self._moves = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self.ports: list[int] = []

    async def open(self) -> list[asyncio.Server]:
        self._moves.set()
        servers = []
        for port in self._upstream:

            async def serve(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port
            ) -> None:
                await self._serve(reader, writer, port)

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            self.ports.append(server.sockets[0].getsockname()[1])
            servers.append(server)
        return servers

    def cut(self) -> None:
        """From now on nothing moves; connections stay as they are."""
        self._loop.call_soon_threadsafe(self._moves.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._moves.set)

    def reset(self) -> None:
        """Breaks every connection that there is; new ones are served."""
        self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        ends = {writer}
        try:
            await self._moves.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            ends.add(far_writer)
            self._writers |= ends
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer))
                group.create_task(self._pump(far_reader, writer))
        except* OSError:
            pass
        finally:
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Ends both directions by an error when one ends, as a broken connection does."""
        while data := await reader.read(_PIECE_BYTES):
            await self._moves.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
