"""The first connect: what to dial, with which secret, and one clear line when it fails."""

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from gpuyard import small_files
from gpuyard.bus.parsing import DirectClient
from gpuyard.errors import BusTooOld, LocalProtocolError, Unavailable

MINIMUM_VERSION: Final = (2, 12)
"""Message TTLs and atomic batches came with it."""
CONNECT_TIMEOUT_S: Final = 2
FIRST_CONNECT_S: Final = 5.0
RECONNECT_WAIT_S: Final = 0.5
PING_EVERY_S: Final = 5
CLOSE_TIMEOUT_S: Final = 2.0
RESETS_REFUSED: Final = 2
_CANCEL_AGAIN_S: Final = 0.1
_CONNECT_FAILED: Final = re.compile(r"\[Errno (\d+)\] Connect call failed \(.*?\)+")
"""How asyncio words every failure to connect."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect and as whom. `shown` is the URL without its secret."""

    url: str
    name: str
    inbox_prefix: str
    credentials: Path | None = None
    ca: Path | None = None

    @property
    def shown(self) -> str:
        return redact(self.url)


def redact(url: str) -> str:
    """The URL, or several with commas between, with everything before an `@` replaced."""
    return re.sub(r"(?<=://)[^/@,]*@", "***@", url)


def patience_s(url: str) -> float:
    """How long a first connect takes at most when the last server tried is the one that answers.

    Each bad one may take the time of a connect and the same again for its greeting. Meant for
    daemons; a person who waits is told sooner.
    """
    return max(FIRST_CONNECT_S, len(url.split(",")) * (2 * CONNECT_TIMEOUT_S + RECONNECT_WAIT_S))


async def dial(
    target: Target,
    *,
    timeout_s: float,
    on_error: Callable[[Exception], None],
    on_disconnect: Callable[[], None],
    on_reconnect: Callable[[], None],
) -> DirectClient:
    """A connected client, or `Unavailable` with the reason; the callbacks go on after that."""
    client = DirectClient()
    faults = _Faults(client, on_error)

    async def disconnected() -> None:
        on_disconnect()

    async def reconnected() -> None:
        on_reconnect()

    options = _options(target) | {
        "error_cb": faults.note,
        "disconnected_cb": disconnected,
        "reconnected_cb": reconnected,
    }
    connecting = asyncio.create_task(_connect(client, options))
    giving_up = asyncio.ensure_future(faults.refused.wait())
    try:
        await asyncio.wait(
            {connecting, giving_up}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not connecting.done():
            raise Unavailable(faults.describe(target)) from faults.last
        _raise_fault(target, connecting)
        _check_version(target, client)
    except BaseException:
        try:
            await _end(lambda: [connecting])
        finally:
            await close_client(client)
        raise
    finally:
        giving_up.cancel()
    return client


class _Faults:
    """What went wrong while connecting, and whether trying again can help."""

    def __init__(self, client: Client, on_error: Callable[[Exception], None]) -> None:
        self.last: Exception | None = None
        self.refused = asyncio.Event()
        self._client = client
        self._on_error = on_error
        self._resets = 0

    async def note(self, fault: Exception) -> None:
        self.last = fault
        self._on_error(fault)
        # A server may hang up on a wrong secret before its reason was read.
        self._resets += isinstance(fault, ConnectionError | nats.errors.UnexpectedEOF)
        text = str(fault).lower()
        if "authorization" in text or "authentication" in text or "certificate" in text:
            self.refused.set()
        if self._resets >= RESETS_REFUSED and self._wants_login:
            self.refused.set()

    def describe(self, target: Target) -> str:
        if self.last is None:
            return f"{target.shown} does not answer"
        line = in_words(self.last)
        if "certificate" in line:
            return f"{target.shown} has a certificate that is not trusted: {line}"
        if self.refused.is_set() or (self._resets and self._wants_login):
            return f"{target.shown} refused the credentials: {line}"
        return f"cannot reach {target.shown}: {line}"

    @property
    def _wants_login(self) -> bool:
        return bool(self._client._server_info.get("auth_required"))


async def close_client(client: DirectClient) -> None:
    """Close within bounded time: the library waits for a peer that may never read again, and may
    end its own waiting by a cancellation that is not ours. However this ends, no socket is left."""
    closing = asyncio.create_task(client.close())
    try:
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
    finally:
        # A close that was cut short leaves the socket open, and what is unsent keeps it open.
        client.abort()
        try:
            await _end(lambda: [closing, *client.background_tasks()])
        finally:
            client.abort()


async def _end(tasks: "Callable[[], list[asyncio.Task[None]]]") -> None:
    """Cancel until all have ended, however; those too that the others begin meanwhile. The library,
    and asyncio before Python 3.12, may swallow it."""
    while going := [task for task in tasks() if not task.done()]:
        for task in going:
            task.cancel()
        await asyncio.wait(going, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks(), return_exceptions=True)


async def _connect(client: Client, options: dict[str, Any]) -> None:
    await client.connect(**options)
    # The library also returns when the server hung up in the middle of the greeting.
    while not client.is_connected:
        await asyncio.sleep(0.01)


def _options(target: Target) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": target.url.split(","),
        "name": target.name,
        "inbox_prefix": target.inbox_prefix,
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": RECONNECT_WAIT_S,
        "ping_interval": PING_EVERY_S,
        "max_outstanding_pings": 2,
        "connect_timeout": CONNECT_TIMEOUT_S,
        # Nothing is kept for later while the connection is down: a late publish is a wrong one.
        "pending_size": 0,
        # Names were checked where they came in, and the check costs a third of a publish.
        "skip_subject_validation": True,
    }
    if target.ca is not None:
        options["tls"] = _tls(target.ca)
    if target.credentials is not None:
        options |= _secret(target.credentials)
    return options


def _tls(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as fault:
        raise Unavailable(f"the CA file {ca} cannot be used: {fault}") from fault


def _secret(path: Path) -> dict[str, Any]:
    """A file with an nkey seed, or a `.creds` file with a JWT and a seed."""
    try:
        text = small_files.read_text(path)
    except OSError as fault:
        told = fault.strerror or fault
        raise Unavailable(f"the credentials file {path} cannot be read: {told}") from fault
    except UnicodeDecodeError as fault:
        raise Unavailable(f"the credentials file {path} holds no credentials") from fault
    if "BEGIN NATS USER JWT" in text:
        return {"user_credentials": str(path)}
    return {"nkeys_seed_str": text.strip()}


def _raise_fault(target: Target, connecting: "asyncio.Future[None]") -> None:
    fault = connecting.exception()
    if fault is None:
        return
    if isinstance(fault, ModuleNotFoundError):
        raise LocalProtocolError(
            "credentials need the package nkeys: pip install 'nats-py[nkeys]'"
        ) from fault
    raise Unavailable(f"cannot connect to {target.shown}: {in_words(fault)}") from fault


def _check_version(target: Target, client: Client) -> None:
    version = client.connected_server_version
    if (version.major, version.minor) < MINIMUM_VERSION:
        needed = ".".join(str(part) for part in MINIMUM_VERSION)
        raise BusTooOld(
            f"{target.shown} runs nats-server {version.major}.{version.minor}.{version.patch}, "
            f"and gpuyard needs {needed} or newer"
        )


def in_words(fault: BaseException) -> str:
    """The fault in words: without Python's, and each once where a name has several addresses."""
    text = " ".join(str(fault).split()).removeprefix("nats: ").strip("'")
    if isinstance(fault, TimeoutError) and text in ("", "timeout"):
        return "timed out"
    if not isinstance(fault, OSError):
        return text or type(fault).__name__
    text = re.sub(_CONNECT_FAILED, lambda match: os.strerror(int(match[1])).lower(), text)
    text = re.sub(r"\[Errno -?\d+\] ", "", text.removeprefix("Multiple exceptions: "))
    return ", ".join(dict.fromkeys(text.split(", "))) or type(fault).__name__
