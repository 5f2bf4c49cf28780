"""`gpuyard run`: one container, in the foreground."""

import os
from typing import Any

import click

from gpuyard.cli.ending import UsageFault, say
from gpuyard.cli.globals import current, global_options
from gpuyard.cli.spec_options import job_options, over_file, spec_from_flags
from gpuyard.cli.streams import write


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[FLAGS]",
    short_help="Run a container.",
    epilog="Exit code: the container's own; 124 time limit, 125 the yard's failure, 126 and 127 as "
    "docker, 128+n a signal; 3 no yard answers, 4 not allowed.",
)
@click.option("--timeout", metavar="TIME", default=None, help="Cancel the job after this, as 10m.")
@job_options
@global_options
def run(timeout: str | None, **values: Any) -> int:
    """Run IMAGE and follow it: its output is ours, its exit code too.

    Docker's flags work; everything after IMAGE belongs to the command. Ctrl-C says how to cancel,
    Ctrl-P Ctrl-Q leaves the job running.

    \b
      gpuyard run --gpus 1 IMAGE python train.py
      gpuyard run -d --gpus all --name nightly IMAGE
      gpuyard run --gpus 2 --gpu-model 'RTX 4090' --gpu-memory 24 --cuda 12.1 IMAGE
      gpuyard run --gpus 1 --where 'zone!=b' --prefer zone=a IMAGE nvidia-smi
      gpuyard run -f job.yaml
    """
    spec = one_spec(values)
    if values["dry_run"]:
        from gpuyard.cli.dry_run import try_specs

        return try_specs([spec], current())
    return _run(spec, timeout, is_detached=values["detach"])


def one_spec(values: dict[str, Any]) -> dict[str, Any]:
    """The one job that flags, IMAGE or FILE describe; raises UsageFault."""
    image, command, files = values["image"], values["command"], values["files"]
    flags = spec_from_flags(values, image, command, os.environ)
    if not files:
        if image is None:
            raise UsageFault("IMAGE is missing; write gpuyard run [FLAGS] IMAGE [CMD…] or -f FILE")
        return flags
    if image is not None:
        raise UsageFault("IMAGE and -f are both given; give one of them")
    from gpuyard.cli.spec_files import read_specs

    specs = [spec for path in files for spec in read_specs(path)]
    if len(specs) != 1:
        raise UsageFault(f"{len(specs)} jobs are given; run takes one, submit takes many")
    return over_file(specs[0], flags)


def _run(spec: dict[str, Any], timeout: str | None, *, is_detached: bool) -> int:
    from gpuyard.cli.session import with_yard
    from gpuyard.cli.spec_texts import duration_s
    from gpuyard.client.async_client import AsyncClient
    from gpuyard.client.submission import prepared

    settings = current()
    timeout_s = duration_s("--timeout", timeout)
    spec = prepared(spec)
    if spec.get("array") is not None and not is_detached:
        raise UsageFault("an array has many outputs; hand it in with submit, or with run -d")

    async def work(client: AsyncClient) -> int:
        if is_detached:
            job = await client.submit(spec)
            if job.warning:
                say(job.warning)
            _print_started(dict(job.view), as_json=settings.json)
            return 0
        from gpuyard.cli.run_session import RunOptions, run_attached

        options = RunOptions(is_quiet=settings.quiet, json=settings.json, timeout_s=timeout_s)
        return await run_attached(client, spec, options)

    return with_yard(settings, work)


def _print_started(view: dict[str, Any], *, as_json: bool) -> None:
    from gpuyard.cli.render import json_object

    write(json_object(view) if as_json else f"{view['id']}\n")
