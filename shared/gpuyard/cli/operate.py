"""`gpuyard cordon`, `uncordon`, `drain` and `forget`: what operators do to nodes."""

from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.completing import node_names
from gpuyard.cli.ending import UsageFault, say
from gpuyard.cli.globals import Globals, current, global_options
from gpuyard.cli.render import View, json_object, plain
from gpuyard.cli.streams import write
from gpuyard.model.quantities import first_named

NAMED: Final = 10
"""Jobs that a question names."""
if TYPE_CHECKING:
    from gpuyard.client.async_client import AsyncClient


@click.command()
@click.argument("name", metavar="NAME", shell_complete=node_names)
@click.option("--gpu", metavar="UUID|INDEX", default=None, help="Only this GPU of it.")
@click.option("--reason", metavar="TEXT", default=None, help="Shown to whoever waits for it.")
@global_options
def cordon(name: str, gpu: str | None, reason: str | None) -> None:
    """Keep new jobs off a node, or off one of its GPUs. What runs there runs on.

    \b
      gpuyard cordon a100-3 --reason maintenance
      gpuyard cordon a100-3 --gpu 5 --reason "ECC errors"
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> "tuple[View, str | None]":
        uuid = await _uuid(client, name, gpu)
        return await client.cordon(name, uuid, reason), uuid

    view, uuid = with_yard(settings, work, as_operator=True)
    _show(view, f"{_of(name, uuid)} cordoned", settings)


@click.command()
@click.argument("name", metavar="NAME", shell_complete=node_names)
@click.option("--gpu", metavar="UUID|INDEX", default=None, help="Only this GPU of it.")
@global_options
def uncordon(name: str, gpu: str | None) -> None:
    """Let new jobs on a node or a GPU again; ends a drain too.

    \b
      gpuyard uncordon a100-3
      gpuyard uncordon a100-3 --gpu 5
    """
    from gpuyard.cli.session import with_yard

    settings = current()

    async def work(client: "AsyncClient") -> "tuple[View, str | None]":
        uuid = await _uuid(client, name, gpu)
        return await client.uncordon(name, uuid), uuid

    view, uuid = with_yard(settings, work, as_operator=True)
    _show(view, f"{_of(name, uuid)} open", settings)


@click.command(epilog="Exit code: 0 empty, 1 the drain was ended by somebody; Ctrl-C leaves it on.")
@click.argument("name", metavar="NAME", shell_complete=node_names)
@click.option("--reason", metavar="TEXT", default=None, help="Shown to whoever waits for it.")
@click.option("--deadline", metavar="TIME", default=None, help="Stop jobs after this, as 10m.")
@global_options
def drain(name: str, reason: str | None, deadline: str | None) -> int:
    """Empty a node: no new jobs start there, and this returns when the last one is over.

    Without --deadline it waits for as long as the jobs take; with one, those that still run then
    are stopped and queued again. 'gpuyard uncordon NAME' ends it.

    \b
      gpuyard drain a100-3 --reason "new driver"
      gpuyard drain a100-3 --deadline 10m && ssh a100-3 reboot
    """
    from gpuyard.cli.session import with_yard
    from gpuyard.cli.spec_texts import duration_s

    settings = current()
    deadline_s = duration_s("--deadline", deadline)

    async def work(client: "AsyncClient") -> int:
        from gpuyard.cli.draining import drained

        view: View = await client.drain(name, reason, deadline_s=deadline_s)
        view = await drained(client, view, is_limited=deadline_s is not None, settings=settings)
        if view["jobs"]:
            say(f"node {name} is {view['scheduling']} again: somebody ended the drain")
            return 1
        _show(view, f"node {name} drained", settings)
        return 0

    return with_yard(settings, work, as_operator=True)


@click.command()
@click.argument("name", metavar="NAME", shell_complete=node_names)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@global_options
def forget(name: str, yes: bool) -> int:
    """Take a node that will not come back off the list. Its jobs count as over.

    What may still run there is told as a warning: it may go on until the host is off.

    \b
      gpuyard forget a100-3
      gpuyard forget -y a100-3
    """
    from gpuyard.cli.asking import confirmed
    from gpuyard.cli.session import with_yard

    settings = current()
    if not yes:
        # A name that nobody knows is told as such, before anybody is asked anything.
        view: View = with_yard(settings, lambda client: client.node(name), as_operator=True)
        question = f"Forget node {name}? {_risk(view)}"
        if not confirmed(question, otherwise=f"node {name} would be forgotten", yes=yes):
            return 1

    async def work(client: "AsyncClient") -> dict[str, Any]:
        return dict(await client.forget(name))

    answer = with_yard(settings, work, as_operator=True)
    if answer["warning"]:
        say(f"warning: {answer['warning']}")
    if settings.json:
        write(json_object({"v": 1, **answer}))
    else:
        write(f"{name}\n" if settings.quiet else f"node {name} forgotten\n")
    return 0


def _risk(view: View) -> str:
    """What forgetting a node may lead to."""
    jobs = view["jobs"]
    if not jobs:
        return "It holds no job."
    named = first_named(jobs, NAMED)
    held = f"job {named}" if len(jobs) == 1 else f"{len(jobs)} jobs ({named})"
    return (
        f"It may still run {held}: they count as over then, and what runs a second time beside "
        "them is on your word. Say yes only where the host is off."
    )


def _show(view: View, told: str, settings: Globals) -> None:
    if settings.json:
        write(json_object(view))
    else:
        write(f"{view['name']}\n" if settings.quiet else f"{plain(told)}\n")


def _of(name: str, uuid: str | None) -> str:
    return f"{uuid} of node {name}" if uuid else f"node {name}"


async def _uuid(client: "AsyncClient", name: str, gpu: str | None) -> str | None:
    """The UUID of the GPU that an index, a UUID or the beginning of one means."""
    if gpu is None:
        return None
    gpus = (await client.node(name))["gpus"]
    if gpu.isascii() and gpu.isdecimal() and len(gpu) < 5:
        found = [item["uuid"] for item in gpus if item["index"] == int(gpu)]
    else:
        wanted = gpu.casefold()
        found = [item["uuid"] for item in gpus if item["uuid"].casefold().startswith(wanted)]
    if len(found) == 1 and gpu:
        return str(found[0])
    if not found or not gpu:
        raise UsageFault(f"--gpu {gpu!r}: node {name} has no such GPU; see 'gpuyard node {name}'")
    raise UsageFault(f"--gpu {gpu!r} may mean {', '.join(found)}; write more of it")
