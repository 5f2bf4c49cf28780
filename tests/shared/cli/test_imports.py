"""What a command loads: import time is an interface."""

import resource
import subprocess
import sys

import pytest

from gpuyard.cli.app import COMMANDS

HEAVY = {"nats", "pydantic", "rich", "structlog", "ruamel", "docker", "msgpack", "asyncio"}


def modules_after(code: str, *, line: int = -1) -> set[str]:
    """Top names of the modules that a fresh interpreter has loaded after `code`.

    Another `line` has the words that `code` itself has printed there.
    """
    program = f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    return set(told.splitlines()[line].split())


def invoke(*arguments: str) -> str:
    return (
        "from gpuyard.cli.app import cli\n"
        f"try: cli.main({list(arguments)!r})\n"
        "except SystemExit: pass"
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["jobz"]])
def test_the_top_level_loads_nothing_heavy(arguments: list[str]) -> None:
    assert not modules_after(invoke(*arguments)) & HEAVY


@pytest.mark.parametrize("command", list(COMMANDS))
def test_a_commands_help_loads_nothing_heavy(command: str) -> None:
    assert not modules_after(invoke(command, "--help")) & HEAVY


def test_run_loads_no_validation_and_no_yaml() -> None:
    code = invoke("run", "--url", "nats://127.0.0.1:1", "busybox", "true")
    loaded = modules_after(code + "\nimport gpuyard.cli.run_session")
    assert "nats" in loaded
    assert not loaded & {"pydantic", "ruamel", "rich", "structlog", "docker", "tomllib"}


def test_run_loads_the_rules_of_where_for_a_condition_only() -> None:
    for flags, is_loaded in (([], "False"), (["--where", "zone=a"], "True")):
        code = invoke("run", "--url", "nats://127.0.0.1:1", *flags, "busybox", "true")
        told = modules_after(f"{code}\nprint('gpuyard.model.where' in sys.modules)", line=-2)
        assert told == {is_loaded}


def test_the_package_alone_loads_nothing() -> None:
    assert not modules_after("import gpuyard") & (HEAVY | {"click", "importlib.metadata"})


def test_help_is_quick() -> None:
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "gpuyard.cli", "--help"], capture_output=True, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    # Processor time and not the clock's, since other tests may run beside this one.
    assert min(once() for _ in range(5)) < 0.25
