"""The node's own credentials for registries, as `docker login` leaves them, read by the Docker SDK.

It knows the docker command's file, credential helpers and identity tokens. It is loaded with the
first pull: with requests it is 8 MiB, and most agents have all their images.
"""

import asyncio
import contextlib
import threading
from typing import Final

import structlog

log = structlog.get_logger()
_READ_S: Final = 30.0
"""A credential helper may ask a keyring or a cloud; one that hangs is not waited for."""
_MOST_STUCK: Final = 8
"""Reads that were given up and still go on: each is a thread and a helper's process."""


class Credentials:
    """Reads them for the pulls of one engine."""

    def __init__(self) -> None:
        self._stuck: set[threading.Thread] = set()

    async def header_for(self, image: str) -> str | None:
        """The X-Registry-Auth header for a pull of `image`, None without credentials for its
        registry.

        They are read anew each time, so that a login counts without a restart of the agent. What
        cannot be read is no credentials, and the log says why: the image may be public, and if it
        is not the registry's refusal ends the pull.
        """
        self._stuck = {thread for thread in self._stuck if thread.is_alive()}
        if len(self._stuck) >= _MOST_STUCK:
            log.warning("no registry credentials", image=image, fault="earlier reads of them hang")
            return None
        loop = asyncio.get_running_loop()
        found: asyncio.Future[str | None] = loop.create_future()

        def read() -> None:
            header = _header(image)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, found, header)

        # Not by asyncio's own threads, which the end of the program would wait for.
        thread = threading.Thread(target=read, name="registry-credentials", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(_READ_S):
                return await found
        except TimeoutError:
            self._stuck.add(thread)
            log.warning("no registry credentials", image=image, fault=f"not read in {_READ_S:g} s")
            return None


def _header(image: str) -> str | None:
    import docker.auth
    import docker.errors

    try:
        registry, _ = docker.auth.resolve_repository_name(image)
        found = docker.auth.load_config().resolve_authconfig(registry)
        return docker.auth.encode_header(found).decode() if found else None
    except docker.errors.DockerException as fault:
        log.warning("no registry credentials", image=image, fault=str(fault))
    except Exception as fault:  # noqa: BLE001 — whatever it meets in a file or answer out of form
        log.warning("no registry credentials", image=image, fault=f"out of form: {fault!r}")
    return None


def _settle(found: "asyncio.Future[str | None]", header: str | None) -> None:
    if not found.done():
        found.set_result(header)
