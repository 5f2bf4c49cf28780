"""The flags of `run` and `submit`: docker's and ours, and the spec that they mean.

What can be judged here is judged here; what only the yard knows is left to the yard, so that a
spec from flags, from a file and from the bus is held to the same rules.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from gpuyard.cli import spec_texts
from gpuyard.cli.completing import node_names
from gpuyard.cli.ending import UsageFault

F = TypeVar("F", bound=Callable[..., Any])
Values = Mapping[str, Any]

_DOCKERS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (
        ("--gpus",),
        {"metavar": "GPUS", "help": "N, all, device=0,2, device=GPU-…, 8GiB, 50%, mig=1g.10gb."},
    ),
    (("-e", "--env"), {"multiple": True, "metavar": "NAME[=VALUE]", "help": "Environment."}),
    (("--env-file",), {"multiple": True, "metavar": "FILE", "help": "Environment from a file."}),
    (("-v", "--volume"), {"multiple": True, "metavar": "SOURCE:TARGET[:ro]", "help": "Mount."}),
    (("-w", "--workdir"), {"metavar": "DIR", "help": "Working directory in the container."}),
    (("-u", "--user", "run_as"), {"metavar": "UID[:GID]", "help": "User in the container."}),
    (("--name",), {"metavar": "NAME", "help": "A name, shown beside the id."}),
    (("--entrypoint",), {"metavar": "PROGRAM", "help": "Instead of the image's."}),
    (("--shm-size",), {"metavar": "SIZE", "help": "Shared memory, as 8g."}),
    (("-m", "--memory"), {"metavar": "SIZE", "help": "Host memory, as 32g."}),
    (("--cpus",), {"type": float, "metavar": "N", "help": "Processors."}),
    (("--network", "--net", "network"), {"metavar": "NAME", "help": "bridge, none or host."}),
    (("-p", "--publish"), {"multiple": True, "metavar": "[HOST:]PORT", "help": "Publish a port."}),
    (("--ulimit",), {"multiple": True, "metavar": "NAME=SOFT[:HARD]", "help": "A limit."}),
    (("--tmpfs",), {"multiple": True, "metavar": "DIR[:OPTIONS]", "help": "A tmpfs."}),
    (("-l", "--label"), {"multiple": True, "metavar": "KEY[=VALUE]", "help": "A label."}),
    (("--pull",), {"type": click.Choice(["missing", "always", "never"]), "help": "When to pull."}),
    (("--stop-timeout",), {"type": float, "metavar": "S", "help": "Grace before SIGKILL."}),
    (("-d", "--detach"), {"is_flag": True, "help": "Print the id and return."}),
    (("-t", "--tty"), {"is_flag": True, "help": "A terminal in the container."}),
    (("-i", "--interactive"), {"is_flag": True, "hidden": True}),
    (("--rm",), {"is_flag": True, "help": "Accepted: containers are always removed."}),
    (("--runtime",), {"hidden": True}),
]
_OURS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (("-f", "--file", "files"), {"multiple": True, "metavar": "FILE", "help": "YAML or JSON."}),
    (("--gpu-model",), {"metavar": "MODEL", "help": "As A100, 'RTX 4090', 'A100|H100'."}),
    (("--gpu-memory",), {"metavar": "GIB", "help": "At least this much on each GPU, as 24."}),
    (("--cuda",), {"metavar": "VERSION", "help": "A driver for at least this CUDA, as 12.1."}),
    (("--where",), {"multiple": True, "metavar": "'KEY OP VALUE'", "help": "Must hold."}),
    (("--prefer",), {"multiple": True, "metavar": "'KEY OP VALUE'", "help": "Should hold."}),
    (
        ("--node",),
        {"metavar": "NAME", "shell_complete": node_names, "help": "Only this node."},
    ),
    (
        ("--tolerate",),
        {"multiple": True, "metavar": "cordon[:REASON]", "help": "Nodes cordoned so will do."},
    ),
    (("--priority",), {"type": int, "metavar": "0-100", "help": "Larger goes first; 50."}),
    (("--preemptible",), {"is_flag": True, "help": "May be stopped for others and tried again."}),
    (("--time", "max_runtime"), {"metavar": "TIME", "help": "At most this long, as 4h."}),
    (("--retries",), {"type": int, "metavar": "N", "help": "New attempts after a failure."}),
    (("--nodes",), {"type": int, "metavar": "N", "help": "A gang over N nodes."}),
    (("--array",), {"metavar": "0-99[%8]", "help": "Many tasks from one job."}),
    (("--after",), {"multiple": True, "metavar": "ID[:WHEN]", "help": "Only after that job."}),
    (("--hold",), {"is_flag": True, "help": "Wait until released."}),
    (
        ("--not-before",),
        {"metavar": "TIME", "help": "Start then or later: 2h, or a date and time."},
    ),
    (("--deadline",), {"metavar": "TIME", "help": "Ended by then: 8h, or a date and time."}),
    (
        ("--enforcement",),
        {
            "type": click.Choice(["hard", "mps", "audited"]),
            "help": "How a share is to be enforced; not supported yet.",
        },
    ),
    (("--id", "job_id"), {"metavar": "ID", "help": "The job's id; twice the same is one job."}),
    (("--dry-run",), {"is_flag": True, "help": "Say where it would start, or why it would wait."}),
]


def job_options(function: F) -> F:
    """Adds every flag that describes a job, and the arguments IMAGE and CMD."""
    function = click.argument("command", nargs=-1, type=click.UNPROCESSED)(function)
    function = click.argument("image", required=False)(function)
    for names, options in reversed([*_DOCKERS, *_OURS]):
        if not options.get("is_flag") and not options.get("multiple"):
            options = {"default": None, **options}
        function = click.option(*names, **options)(function)
    return function


def check_flags(values: Values) -> None:
    """Refuses by name what is understood and not to be had; raises UsageFault."""
    if values["interactive"]:
        raise UsageFault(
            "-i cannot be used here; standard input is not passed to jobs, leave -i out"
        )
    runtime = values["runtime"]
    if runtime is None:
        return
    if runtime != "nvidia":
        raise UsageFault(f"--runtime {runtime} cannot be used here; the node chooses the runtime")
    devices = [text for text in values["env"] if text.startswith(f"{spec_texts.DEVICES}=")]
    wanted = devices[-1].partition("=")[2] if devices else "all"
    raise UsageFault(
        f"--runtime nvidia is not needed here; {spec_texts.instead_of_devices(wanted)}"
    )


def spec_from_flags(
    values: Values, image: str | None, command: Sequence[str], environ: Mapping[str, str]
) -> dict[str, Any]:
    """The spec that the flags mean, with the keys that they speak of and no others."""
    check_flags(values)
    spec: dict[str, Any] = {}
    if image is not None:
        spec["image"] = image
    if command:
        spec["command"] = list(command)
    for name in ("workdir", "run_as", "name", "cpus", "network", "pull", "node", "priority"):
        spec[name] = values[name]
    for name in ("nodes", "array", "enforcement"):
        spec[name] = values[name]
    for name in ("tty", "preemptible", "hold"):
        spec[name] = values[name] or None
    spec |= _sizes_and_times(values)
    spec |= _collections(values, environ)
    spec["id"] = values["job_id"]
    spec["where"] = [*spec_texts.conditions("--where", values["where"]), *_shorthand(values)]
    spec_texts.check_together(spec["where"])
    spec["prefer"] = spec_texts.conditions("--prefer", values["prefer"])
    spec["tolerate"] = [spec_texts.tolerate(text) for text in values["tolerate"]]
    if values["entrypoint"] is not None:
        spec["entrypoint"] = [values["entrypoint"]] if values["entrypoint"] else []
    if values["retries"] is not None:
        spec["retries"] = {"max": values["retries"]}
    keeps_empty = "entrypoint"
    return {key: v for key, v in spec.items() if v not in (None, [], {}) or key == keeps_empty}


def _sizes_and_times(values: Values) -> dict[str, Any]:
    return {
        "gpus": spec_texts.gpus(values["gpus"]),
        "memory_mib": spec_texts.size_mib("--memory", values["memory"]),
        "shm_mib": spec_texts.size_mib("--shm-size", values["shm_size"]),
        "max_runtime": spec_texts.duration("--time", values["max_runtime"]),
        "stop_grace": values["stop_timeout"],
        "not_before": spec_texts.moment("--not-before", values["not_before"]),
        "deadline": spec_texts.moment("--deadline", values["deadline"]),
    }


def _collections(values: Values, environ: Mapping[str, str]) -> dict[str, Any]:
    env: dict[str, str] = {}
    for path in values["env_file"]:
        env |= spec_texts.env_file(path, environ)
    env |= spec_texts.env(values["env"], environ)
    return {
        "env": env,
        "labels": spec_texts.pairs(values["label"]),
        "mounts": [spec_texts.mount(text) for text in values["volume"]],
        "ports": list(values["publish"]),
        "ulimits": [spec_texts.ulimit(text) for text in values["ulimit"]],
        "tmpfs": dict(spec_texts.tmpfs(text) for text in values["tmpfs"]),
        "after": [spec_texts.after(text) for text in values["after"]],
    }


def _shorthand(values: Values) -> list[str]:
    """The lines of `where` that the flags without an operator stand for."""
    lines = []
    for name, line in (
        ("gpu_model", spec_texts.gpu_model),
        ("gpu_memory", spec_texts.gpu_memory),
        ("cuda", spec_texts.cuda),
    ):
        if values[name] is not None:
            lines.append(line(values[name]))
    return lines


def over_file(base: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """A spec from a file with flags laid over it: maps are joined, all else is replaced."""
    merged = dict(base)
    for key, value in flags.items():
        old = merged.get(key)
        is_joined = isinstance(value, dict) and isinstance(old, dict)
        merged[key] = {**old, **value} if is_joined and isinstance(old, dict) else value
    return merged
