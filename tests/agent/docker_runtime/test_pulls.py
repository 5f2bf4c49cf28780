"""Pulls: from a registry that behaves, and from one with each of the usual faults."""

import asyncio
import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from gpuyard.errors import RuntimeFailure
from gpuyard.messages import PullProgress
from gpuyard_agent.docker_runtime.engine import DockerEngine
from gpuyard_agent.docker_runtime.pulls import Meter, image_parts
from tests.agent.docker_runtime.bench import Bench
from tests.agent.docker_runtime.registry import Registry


@contextmanager
def _registry(bench: Bench, **options: Any) -> Iterator[Registry]:
    with Registry(**options) as registry:
        try:
            yield registry
        finally:
            with bench.engine.api() as api:
                for name in (
                    registry.image,
                    f"{registry.image.rpartition(':')[0]}@{registry.digest}",
                ):
                    try:
                        api.remove_image(name, force=True)
                    except docker.errors.APIError:
                        continue


async def test_a_pull_tells_its_progress_and_is_shared(bench: Bench) -> None:
    with _registry(bench) as registry:
        launch = bench.launch_of("true", image=registry.image)
        told: list[PullProgress] = []

        await asyncio.gather(*(bench.runtime.prepare(launch, told.append) for _ in range(3)))

        assert registry.pulls == 1
        assert told[0] == {"done_bytes": 0, "total_bytes": 0}
        assert told[-1] == {
            "done_bytes": len(registry.layer),
            "total_bytes": len(registry.layer),
        }
        assert any(0 < one["done_bytes"] < one["total_bytes"] for one in told)
        await bench.runtime.prepare(launch, told.append)
        assert registry.pulls == 1


async def test_always_pulls_what_is_there_too(bench: Bench) -> None:
    with _registry(bench) as registry:
        launch = bench.launch_of("true", image=registry.image, pull="always")
        for _ in range(2):
            await bench.runtime.prepare(launch, lambda _: None)
        assert registry.pulls >= 1


async def test_an_image_named_by_its_digest_is_pulled_by_it(bench: Bench) -> None:
    with _registry(bench) as registry:
        image = f"{registry.image}@{registry.digest}"
        launch = bench.launch_of("true", image=image)
        await bench.runtime.prepare(launch, lambda _: None)
        await bench.runtime.prepare(launch, lambda _: None)
        assert registry.pulls == 1


@pytest.mark.parametrize(
    ("fault", "reason", "temporary"),
    [
        ("missing", "image_not_found", False),
        ("auth", "image_auth", False),
        ("limit", "image_pull_failed", True),
    ],
)
async def test_a_fault_of_the_registry_has_its_own_reason(
    bench: Bench, fault: str, reason: str, temporary: bool
) -> None:
    with _registry(bench, fault=fault) as registry:
        launch = bench.launch_of("true", image=registry.image)
        with pytest.raises(RuntimeFailure) as raised:
            await bench.runtime.prepare(launch, lambda _: None)

    assert (raised.value.reason, raised.value.temporary) == (reason, temporary), raised.value


async def test_a_registry_that_is_not_there_is_worth_another_try(bench: Bench) -> None:
    launch = bench.launch_of("true", image="127.0.0.1:1/no/registry:1")

    with pytest.raises(RuntimeFailure, match="connection refused") as raised:
        await bench.runtime.prepare(launch, lambda _: None)

    assert (raised.value.reason, raised.value.temporary) == ("image_pull_failed", True)


async def test_a_pull_is_given_up_for_silence_and_not_for_its_length(bench: Bench) -> None:
    impatient = DockerEngine(bench.yard, url=bench.engine.url, pull_idle_s=1.0)
    with _registry(bench, fault="silent") as registry:
        with pytest.raises(RuntimeFailure, match="no progress for 1 s") as raised:
            await impatient.pulls.pull(registry.image, lambda _: None)
        registry.silence_over.set()

    assert (raised.value.reason, raised.value.temporary) == ("image_pull_failed", True)


async def test_a_pull_ends_with_the_last_who_wants_it(bench: Bench) -> None:
    with _registry(bench, fault="silent") as registry:
        launch = bench.launch_of("true", image=registry.image)
        both = [
            asyncio.create_task(bench.runtime.prepare(launch, lambda _: None)) for _ in range(2)
        ]
        await asyncio.sleep(1)
        both[0].cancel()
        await asyncio.sleep(0.1)
        assert not both[1].done()
        registry.silence_over.set()
        await asyncio.wait_for(both[1], 20)
        assert both[0].cancelled()


async def test_the_nodes_own_credentials_reach_the_registry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with _registry(bench, fault="auth") as registry:
        secret = base64.b64encode(b"me:secret").decode()
        config = {"auths": {registry.host: {"auth": secret}}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

        await bench.runtime.prepare(bench.launch_of("true", image=registry.image), lambda _: None)

        assert registry.authorization == f"Basic {secret}"


def test_the_meter_sums_layers_and_says_nothing_twice() -> None:
    meter = Meter()

    def line(layer: str, status: str, current: int = 0, total: int = 0) -> PullProgress | None:
        detail = {"current": current, "total": total} if total else {}
        return meter.take({"id": layer, "status": status, "progressDetail": detail})

    assert line("a", "Pulling fs layer") is None
    assert line("a", "Downloading", 10, 100) == {"done_bytes": 10, "total_bytes": 100}
    assert line("b", "Downloading", 5, 50) == {"done_bytes": 15, "total_bytes": 150}
    assert line("b", "Downloading", 5, 50) is None
    assert line("a", "Download complete") == {"done_bytes": 105, "total_bytes": 150}
    assert line("a", "Extracting", 1, 900) is None
    assert line("c", "Already exists") is None


@pytest.mark.parametrize(
    ("image", "name", "tag"),
    [
        ("a/b", "a/b", "latest"),
        ("a/b:1", "a/b", "1"),
        ("host:5000/a", "host:5000/a", "latest"),
        ("host:5000/a:2", "host:5000/a", "2"),
        ("a@sha256:ff", "a", "sha256:ff"),
        ("host:5000/a:2@sha256:ff", "host:5000/a", "sha256:ff"),
    ],
)
def test_exactly_the_named_image_is_pulled(image: str, name: str, tag: str) -> None:
    assert image_parts(image) == {"fromImage": name, "tag": tag}
