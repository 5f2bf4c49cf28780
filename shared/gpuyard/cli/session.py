"""One command's connection to its yard."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpuyard.cli.globals import Globals
from gpuyard.client.async_client import AsyncClient
from gpuyard.client.config import load_config
from gpuyard.errors import BusTooOld, Unavailable
from gpuyard.subjects import OPERATOR_TENANT

T = TypeVar("T")


def make_client(settings: Globals, *, as_operator: bool = False) -> AsyncClient:
    """A client for what the global options and the configuration say; not connected yet.

    `as_operator` acts for the yard, whatever tenant is named.
    """
    _quiet_logging(settings.debug)
    tenant = OPERATOR_TENANT if as_operator else settings.tenant
    return AsyncClient(
        config=load_config(url=settings.url, tenant=tenant, context=settings.context)
    )


async def connect(client: AsyncClient) -> None:
    """Connect, or raise `Unavailable` with a line that says what to do."""
    try:
        await client.connect()
    except BusTooOld:
        raise
    except Unavailable as fault:
        raise Unavailable(f"{fault}; {_advice(client)}", code=fault.code) from fault


def with_yard(
    settings: Globals,
    work: Callable[[AsyncClient], Awaitable[T]],
    *,
    as_operator: bool = False,
) -> T:
    """Connects, does the work, disconnects."""

    async def whole() -> T:
        client = make_client(settings, as_operator=as_operator)
        try:
            await connect(client)
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(whole())


def _advice(client: AsyncClient) -> str:
    origin = client.config.origins["url"]
    if origin == "default":
        return "start a yard with 'gpuyard up', or name yours with --url or GPUYARD_URL"
    named = "--url" if origin == "argument" else origin
    return f"the address is from {named}"


def _quiet_logging(debug: bool) -> None:
    import logging

    if debug:
        logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
    else:
        # Without a handler Python would print warnings of the connection among our lines.
        logging.getLogger().addHandler(logging.NullHandler())
