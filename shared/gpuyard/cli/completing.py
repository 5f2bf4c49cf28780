"""Words that only the yard or the configuration knows, for the shell's completion.

Never in the way: whatever goes wrong, and whatever takes longer than a moment, gives no words and
no message.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient

TIMEOUT_S: Final = 1.0
MOST: Final = 200
Words = list[CompletionItem]


def job_ids(ctx: click.Context, _: click.Parameter, start: str) -> Words:
    """Ids of jobs, each with its name and state where the shell shows such."""

    async def ask(client: "AsyncClient") -> Words:
        found = client.jobs(all=True, limit=MOST)
        return [CompletionItem(job.id, help=_about(job.name, job.state)) async for job in found]

    return _asked(ctx, ask, start)


def live_job_ids(ctx: click.Context, _: click.Parameter, start: str) -> Words:
    """Ids of jobs that are not over."""

    async def ask(client: "AsyncClient") -> Words:
        found = client.jobs(limit=MOST)
        return [CompletionItem(job.id, help=_about(job.name, job.state)) async for job in found]

    return _asked(ctx, ask, start)


def node_names(ctx: click.Context, _: click.Parameter, start: str) -> Words:
    async def ask(client: "AsyncClient") -> Words:
        return [CompletionItem(node["name"], help=node["state"]) for node in await client.nodes()]

    return _asked(ctx, ask, start)


def tenant_names(ctx: click.Context, _: click.Parameter, start: str) -> Words:
    async def ask(client: "AsyncClient") -> Words:
        return [CompletionItem(view["tenant"]) for view in await client.tenants()]

    return _asked(ctx, ask, start)


def context_names(_: click.Context, __: click.Parameter, start: str) -> Words:
    """Contexts of the configuration files; the yard is not asked."""
    import os

    from gpuyard.client.config import known_contexts
    from gpuyard.errors import GpuyardError

    try:
        names = known_contexts(os.environ)
    except GpuyardError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(start)]


def _about(name: str | None, state: str) -> str:
    return f"{name}, {state}" if name else state


def _asked(
    ctx: click.Context, ask: "Callable[[AsyncClient], Awaitable[Words]]", start: str
) -> Words:
    import asyncio

    from gpuyard.cli.globals import Globals
    from gpuyard.cli.session import make_client

    settings = ctx.find_root().ensure_object(Globals)

    async def whole() -> Words:
        client = make_client(settings)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await client.connect(timeout_s=TIMEOUT_S)
                return await ask(client)
        finally:
            await client.close()

    try:
        words = asyncio.run(whole())
    except Exception:  # noqa: BLE001  # a shell waits for words, and an error is none
        return []
    return [word for word in words if str(word.value).startswith(start)]
