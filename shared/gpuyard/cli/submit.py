"""`gpuyard submit`: jobs handed in, ids printed."""

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
    short_help="Hand in jobs.",
    epilog="Exit code: 0 accepted, 1 refused, 3 no yard answers; with --wait as 'gpuyard run'.",
)
@click.option("--wait", "is_waiting", is_flag=True, help="Wait for the end; the job's exit code.")
@job_options
@global_options
def submit(is_waiting: bool, **values: Any) -> int:
    """Hand in IMAGE with its command, or every job of each FILE, and print the ids.

    \b
      gpuyard submit --gpus 2 --time 4h IMAGE python train.py
      gpuyard submit -f job.yaml -f more.yaml
      gpuyard submit --dry-run --gpus 4 --gpu-model A100 --where zone=a IMAGE
      generate | gpuyard submit -f -
    """
    specs = many_specs(values)
    if values["dry_run"]:
        from gpuyard.cli.dry_run import try_specs

        return try_specs(specs, current())
    return _submit(specs, is_waiting=is_waiting)


def many_specs(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Every job that flags, IMAGE or FILEs describe; flags are laid over each job of a file."""
    image, files = values["image"], values["files"]
    flags = spec_from_flags(values, image, values["command"], os.environ)
    if not files:
        if image is None:
            raise UsageFault(
                "IMAGE is missing; write gpuyard submit [FLAGS] IMAGE [CMD…] or -f FILE"
            )
        return [flags]
    if image is not None:
        raise UsageFault("IMAGE and -f are both given; give one of them")
    from gpuyard.cli.spec_files import places, read_specs

    found = [(path, read_specs(path)) for path in files]
    specs = [over_file(spec, flags) for _, read in found for spec in read]
    if values["job_id"] and len(specs) > 1:
        raise UsageFault("--id names one job; the files hold several")
    if len(specs) > 1:
        _check_all(specs, [place for path, read in found for place in places(path, len(read))])
    return specs


def _check_all(specs: list[dict[str, Any]], at: list[str]) -> None:
    """Refuses all for what is wrong with one, so that a fault in the last leaves none handed in.

    Of one job the yard says the same. Raises RequestError with the place of the first.
    """
    from gpuyard.client.submission import encoded, prepared
    from gpuyard.errors import RequestError
    from gpuyard.model.intake import parse_spec

    for spec, place in zip(specs, at, strict=True):
        try:
            parse_spec(spec)
            encoded(prepared(spec))
        except RequestError as fault:
            raise RequestError(
                f"{place}: {fault}; none of the {len(specs)} jobs is handed in"
            ) from fault


def _submit(specs: list[dict[str, Any]], *, is_waiting: bool) -> int:
    from gpuyard.cli.render import json_answer
    from gpuyard.cli.session import with_yard
    from gpuyard.cli.wait import ended_code
    from gpuyard.client.async_client import AsyncClient

    settings = current()

    async def work(client: AsyncClient) -> int:
        jobs = []
        for spec in specs:
            job = await client.submit(spec)
            if job.warning:
                say(job.warning)
            jobs.append(job)
            if not settings.json:
                write(f"{job.id}\n")
        codes = [0]
        if is_waiting:
            jobs = [await client.wait(job.id) for job in jobs]
            codes = [ended_code(job, settings) for job in jobs]
        if settings.json:
            write(json_answer([dict(job.view) for job in jobs], is_one=len(jobs) == 1))
        return max(codes)

    return with_yard(settings, work)
