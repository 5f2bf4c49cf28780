"""Fixtures every test may use, and the marker of those that need a Docker engine."""

import pytest

# Drills are run as commands too; as tests they say what they compared.
pytest.register_assert_rewrite("tests.system.drills")

pytest_plugins = [
    "tests.support.engine",
    "tests.support.nats_server",
    "tests.support.nats_cluster",
    "tests.support.running_yard",
]

_NEED_AN_ENGINE = {"busybox_image", "docker_engine", "private_engine"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks each test that asks for an engine with `docker`, so that none is forgotten; modules of
    few long tests come first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: "system" not in item.path.parts)
    for item in items:
        if isinstance(item, pytest.Function) and _NEED_AN_ENGINE.intersection(item.fixturenames):
            item.add_marker(pytest.mark.docker)
