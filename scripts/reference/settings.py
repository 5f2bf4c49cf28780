"""The page of settings: agent, coordinator, a node's policy, and what the command line reads."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final
from unittest import mock

from gpuyard.client.config import Config
from gpuyard.errors import GpuyardError
from gpuyard_agent import __main__ as agent_main
from gpuyard_agent import settings as agent
from gpuyard_agent.core.policy import NodePolicy
from gpuyard_coordinator import __main__ as coordinator_main
from gpuyard_coordinator import settings as coordinator
from reference.markdown import block, code, described, page, table

Load = Callable[..., Any]
EMPTY: Final = Path("/dev/null")
_URL: Final = "where NATS listens, as `nats://TOKEN@HOST:4222`"
_SHARED: Final = {
    "url": _URL,
    "credentials": "file with the credentials for the bus",
    "ca": "file with the authority that signed the bus's certificate",
    "log_level": "`debug`, `info`, `warning` or `error`",
    "log_format": "`json` or `text`; unset: text on a terminal, else JSON",
}
_AGENT: Final = _SHARED | {
    "name": "the node's name; unset: the first label of the host's name",
    "dir": "what must be remembered over a restart",
    "runtime": "`docker`, `process` or `simulated`; unset: docker, but simulated for fleets above "
    "20 nodes",
    "docker_host": "the engine's address; unset: `DOCKER_HOST`, else /var/run/docker.sock",
    "gpu_injection": "how GPUs get into containers: `toolkit`, `cdi`, `device-nodes` or `none`; "
    "unset: found out",
    "simulate": "a number of nodes of 8 simulated GPUs, or a "
    "[fleet file](../start.md#a-fleet-of-your-own); one node takes `name`, "
    "several are `node-0`, `node-1` and so on: on more than one host use "
    "fleet files with names of their own",
    "labels": "facts of your own, which jobs may ask for; `gpu-*` names are the agent's",
    "address": "under which other nodes reach this one, for gangs; unset: the one from which it "
    "speaks to the bus",
    "gang_ports": "ports at which gangs may meet on this node, as first-last",
    "beat_s": "seconds between two beats",
    "log_limit_mib": "the most that one job's output may take on the bus; more is cut, with a mark",
    "stop_jobs_on_exit": "on SIGTERM end the jobs, with their grace, before leaving",
}
_COORDINATOR: Final = _SHARED | {
    "dir": "what is kept between runs: which yard the bus had, so that no new one takes its place",
    "insecure": "serve a bus beyond loopback although no credentials are set",
    "beat_s": "seconds between two beats of an agent",
    "suspect_s": "silence after which a node is `suspect`",
    "lost_s": "silence after which a node is `lost`",
    "fence_s": "`stop_after` of a job with retries that says nothing of partitions",
    "foreign_tolerated_mib": "memory of processes outside the yard that keeps no job off a GPU",
    "starvation_after_s": "a job that waited so long has the GPUs of one node collected for it as "
    "they fall free, where no time limits tell when that will be",
    "min_runtime_s": "how long an attempt has had its node before it may be preempted",
    "store_max_gib": "the most that all streams may take on the bus's disk; unset: what their "
    "default sizes come to, or less where the server has less",
    "record_mib": "the most that the record of decisions may take in `dir`, which `gpuyard "
    "simulate` replays; 0: none is kept",
}
_POLICY: Final = {
    "allowed_mounts": "prefixes of host paths, and names of volumes, that jobs may mount",
    "images": "images that may run, in the manner of a shell's globs",
    "networks": "networks that jobs may use, in the same manner",
}
_CLIENT: Final = {
    "url": _URL,
    "tenant": "the tenant to act for; `default` where nothing says otherwise",
    "user": "the user to act as; unset: the login name",
    "credentials": "file with the credentials for the bus",
    "ca": "file with the authority that signed the bus's certificate",
}
_CONTEXTS: Final = """
context = "lab"          # the one that is used when nobody names one

[contexts.lab]
url = "nats://TOKEN@10.20.0.5:4222"
tenant = "team-a"
"""


def settings_page() -> str:
    known = {item.name for item in fields(Config)} - {"context", "origins"}
    client = described([key for key in _CLIENT if key in known], _CLIENT, "settings of clients")
    return page(
        "Settings",
        "First wins: a flag, the environment, the file, the default. A key that is not known is an "
        "error that names the nearest one. Times are in seconds.",
        "## gpuyard-agent",
        "File: `/etc/gpuyard/agent.toml`, or `--config FILE`.",
        _daemon(agent.AgentSettings, agent.load, agent_main._arguments, _AGENT, "agent"),
        "## gpuyard-coordinator",
        "File: `/etc/gpuyard/coordinator.toml`, or `--config FILE`.",
        _daemon(
            coordinator.CoordinatorSettings,
            coordinator.load,
            coordinator_main._arguments,
            _COORDINATOR,
            "coordinator",
        ),
        "## A node's policy",
        "File: `/etc/gpuyard/node-policy.toml` on the node. It is the operator's; no job changes "
        "it. Without the file everything may be used but what would hand the host over: the "
        "engine's socket as a mount. A key that is left out allows all.",
        table(
            ["key", "allows"],
            (
                (code(name), text)
                for name, text in described(
                    [item.name for item in fields(NodePolicy)], _POLICY, "the node's policy"
                )
            ),
        ),
        "## Command line and SDK",
        "First wins: a flag or argument; the context that one names; the environment; the context "
        "that `GPUYARD_CONTEXT` names; the yard of this folder (`.gpuyard/gpuyard.env`, searched "
        "upwards, used only if it is yours, mode 0600, and its yard lives); "
        "`~/.config/gpuyard/config.toml`, or the file that `GPUYARD_CONFIG` names; "
        "`/etc/gpuyard/config.toml`; the default.",
        table(
            ["key", "variable", "means"],
            ((code(key), code(f"GPUYARD_{key.upper()}"), text) for key, text in client),
        ),
        block("toml", _CONTEXTS),
    )


def _daemon(
    shape: type,
    load: Load,
    arguments: Callable[[], argparse.Namespace],
    words: Mapping[str, str],
    name: str,
) -> str:
    flags = _flags(arguments)
    keys = {item.name: item for item in fields(shape)}
    return table(
        ["key", "default", "flag", "variable", "means"],
        (
            (
                code(key),
                _default(keys[key]),
                code(flags[key]) if key in flags else "-",
                code(f"GPUYARD_{key.upper()}") if _reads_variable(load, key) else "-",
                text,
            )
            for key, text in described(keys, words, f"settings of the {name}")
        ),
    )


def _default(item: Field[Any]) -> str:
    if item.default is MISSING or item.default is None:
        return "-"
    return code(json.dumps(item.default))


def _flags(arguments: Callable[[], argparse.Namespace]) -> dict[str, str]:
    """The option of each key, from the parser that the program makes."""
    made: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser, *_: object) -> argparse.Namespace:
        made.append(parser)
        return argparse.Namespace()

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", keep),
        mock.patch.object(sys, "argv", ["gpuyard"]),
    ):
        arguments()
    return {
        action.dest: action.option_strings[-1]
        for action in made[0]._actions
        if action.option_strings
    }


def _reads_variable(load: Load, key: str) -> bool:
    """Whether GPUYARD_<KEY> changes anything, a complaint included."""
    before = load(file=EMPTY, environment={}, flags={})
    try:
        after = load(file=EMPTY, environment={f"GPUYARD_{key.upper()}": "7"}, flags={})
    except GpuyardError:
        return True
    return bool(after != before)
