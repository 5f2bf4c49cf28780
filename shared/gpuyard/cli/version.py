"""`gpuyard version`."""

from typing import Any

import click

from gpuyard.cli.globals import Globals, current, global_options
from gpuyard.cli.render import json_object
from gpuyard.cli.streams import write

ASK_S = 1.0


@click.command()
@global_options
def version() -> None:
    """Show the version of this program and, where one answers, of the yard.

    \b
      gpuyard version
      gpuyard version --json | jq -r .yard.version
    """
    import asyncio

    import gpuyard

    settings = current()
    yard = asyncio.run(_yard(settings))
    if settings.json:
        write(json_object({"v": 1, "version": gpuyard.__version__, "yard": yard}))
        return
    write(f"gpuyard {gpuyard.__version__}\n")
    if yard is not None and not settings.quiet:
        write(f"yard {yard['yard']} at {yard['url']}: version {yard['version']}\n")


async def _yard(settings: Globals) -> dict[str, Any] | None:
    """The yard's own answer; None where none answers, which is no fault here."""
    from gpuyard.bus import redact
    from gpuyard.cli.session import make_client
    from gpuyard.errors import Unavailable

    client = make_client(settings)
    try:
        await client.connect(timeout_s=ASK_S)
        answer = await client.api.call("version", answer_s=ASK_S)
    except Unavailable:
        return None
    finally:
        await client.close()
    url = redact(client.config.url)
    return {"version": answer.get("version"), "yard": answer.get("yard"), "url": url}
