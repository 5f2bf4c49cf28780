"""The contract of a gpuyard, and what a user imports.

    from gpuyard import Client

    with Client() as yard:
        job = yard.run({"image": "busybox", "command": ["echo", "hello"], "gpus": 1})

Names are resolved when first used, so that `import gpuyard` costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuyard import errors
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.jobs import Job, LogLine
    from gpuyard.client.sync_client import Client
    from gpuyard.model.job import JobSpec

    __version__: str

__all__ = ["AsyncClient", "Client", "Job", "JobSpec", "LogLine", "__version__", "errors"]

_HOMES = {
    "AsyncClient": "gpuyard.client.async_client",
    "Client": "gpuyard.client.sync_client",
    "Job": "gpuyard.client.jobs",
    "JobSpec": "gpuyard.model.job",
    "LogLine": "gpuyard.client.jobs",
}


def __getattr__(name: str) -> Any:
    # importlib.metadata is slow to load, and the version is rarely asked for.
    if name == "__version__":
        from importlib.metadata import version

        return version("gpuyard")
    from importlib import import_module

    if name == "errors":
        return import_module("gpuyard.errors")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'gpuyard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
