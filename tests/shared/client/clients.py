"""Clients for tests, with settings from nowhere but the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpuyard.client.async_client import AsyncClient
from gpuyard.client.config import load_config
from gpuyard.client.jobs import Job, LogLine

SPEC = {"image": "busybox", "command": ["true"]}


@asynccontextmanager
async def client_of(url: str, tenant: str = "default") -> AsyncIterator[AsyncClient]:
    config = load_config(url=url, tenant=tenant, user="alice", environ={}, folder=Path("/"))
    async with AsyncClient(config=config) as client:
        yield client


async def run_lines(client: AsyncClient) -> tuple[Job, list[str]]:
    lines: list[LogLine] = []
    job = await client.run(SPEC, on_log=lines.append)
    return job, [f"{line.stream}:{line.text}" for line in lines]
