"""A bench on the shared engine, and makers of more of them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.agent.docker_runtime.bench import Bench
from tests.support.engine import Engine

MakeBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def make_bench() -> AsyncIterator[MakeBench]:
    """`await make_bench(engine, yard=…, node=…)`: opened, and cleared at the test's end."""
    benches: list[Bench] = []

    async def make(engine: Engine, **options: Any) -> Bench:
        bench = Bench(engine, **options)
        benches.append(bench)
        await bench.runtime.open()
        return bench

    yield make
    for bench in benches:
        await bench.close()


@pytest.fixture
async def bench(docker_engine: Engine, busybox_image: str, make_bench: MakeBench) -> Bench:
    """A node in a yard of its own on the shared engine."""
    return await make_bench(docker_engine)
