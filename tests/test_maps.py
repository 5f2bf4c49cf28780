"""The maps at the head of packages name every module, and none that is not there."""

import pkgutil
import re
from types import ModuleType

import pytest

import gpuyard_agent
import gpuyard_agent.core
import gpuyard_coordinator
import gpuyard_coordinator.core

MAPPED = (gpuyard_agent, gpuyard_agent.core, gpuyard_coordinator, gpuyard_coordinator.core)


@pytest.mark.parametrize("package", MAPPED)
def test_a_map_names_every_module(package: ModuleType) -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)} - {"__main__"}

    assert set(re.findall(r"`(\w+)`", package.__doc__ or "")) == modules
