"""`gpuyard apply`: tenants' limits from files or templates."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.ending import UsageFault
from gpuyard.cli.globals import Globals, current, global_options
from gpuyard.cli.render import json_answer, plain
from gpuyard.cli.streams import write

if TYPE_CHECKING:
    from gpuyard.client.answers import Applied
    from gpuyard.client.async_client import AsyncClient

Document = dict[str, Any]
_NOT_SETTINGS: Final = frozenset({"v", "tenant", "used", "over", "exists"})


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="YAML or JSON; - stdin.")
@click.option("--template", type=click.Choice(["dev", "prod"]), default=None, help="For NAME.")
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@global_options
def apply(name: str | None, files: tuple[str, ...], template: str | None, dry_run: bool) -> None:
    """Set tenants' limits: one YAML document a tenant. A key that is left out is not limited.

    It takes effect at once. Running jobs are never ended by it: above a lowered limit they run
    out, and new ones wait.

    \b
      gpuyard apply -f tenants.yaml --dry-run
      gpuyard apply -f tenants.yaml
      gpuyard apply --template dev team-a
      printf 'tenant: team-a\\nlimits: {gpus: 4}\\n' | gpuyard apply -f -
    """
    from gpuyard.cli.session import with_yard

    settings = current()
    documents = _documents(name, files, template)

    async def work(client: "AsyncClient") -> "list[Applied]":
        # All are judged before the first is applied: a fault in the last leaves nothing half done.
        tried = [await client.apply(document, dry_run=True) for document in documents]
        if dry_run:
            return tried
        return [await client.apply(document) for document in documents]

    done = with_yard(settings, work, as_operator=True)
    _show(done, settings, is_dry=dry_run)


def _documents(name: str | None, files: Sequence[str], template: str | None) -> list[Document]:
    if template is not None:
        if name is None or files:
            raise UsageFault("--template takes a NAME and no -f; write --template dev team-a")
        return [_from_template(template, name)]
    if name is not None:
        raise UsageFault(f"apply takes files; write gpuyard apply -f {name}, or --template dev")
    if not files:
        raise UsageFault("-f FILE is missing; write gpuyard apply -f FILE or --template dev NAME")
    from gpuyard.cli.spec_files import read_documents

    documents = [item for path in files for item in read_documents(path, "tenant", "tenant: …")]
    _check_names(documents)
    return documents


def _from_template(template: str, name: str) -> Document:
    from gpuyard.model import ids, tenant

    if not ids.is_name(name):
        raise UsageFault(f"{name!r} is no tenant's name; it has a-z, 0-9 and -, at most 63")
    return tenant.template(template, name).normalised()


def _check_names(documents: Sequence[Document]) -> None:
    seen: set[str] = set()
    for document in documents:
        name = document.get("tenant")
        if name is None and "image" in document:
            raise UsageFault("this is a job; hand it in with 'gpuyard submit -f FILE'")
        if isinstance(name, str) and name in seen:
            raise UsageFault(f"tenant {name} stands twice; one document a tenant")
        if isinstance(name, str):
            seen.add(name)


def _show(done: "Sequence[Applied]", settings: Globals, *, is_dry: bool) -> None:
    if settings.json:
        write(json_answer(done, is_one=len(done) == 1))
        return
    for one in done:
        name = one["tenant"]["tenant"]
        if settings.quiet:
            write(f"{name}\n")
            continue
        note = " (dry run)" if is_dry else ""
        write(f"tenant {plain(name)} {_word(one)}{note}\n")
        if is_dry:
            lines = differences(one["before"] or {}, one["tenant"])
            write("".join(f"  {plain(line)}\n" for line in lines))


def _word(one: "Applied") -> str:
    if not one["changed"]:
        return "unchanged"
    before = one["before"]
    return "configured" if before and before.get("exists", True) else "created"


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """`limits.gpus: 8 → 4` for every setting that differs."""
    old, new = dict(_flat(before)), dict(_flat(after))
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            yield f"{key}: {_text(old.get(key))} → {_text(new.get(key))}"


def _flat(view: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting with its path; what is off is as if it had never been set."""
    for key, value in view.items():
        if not prefix and key in _NOT_SETTINGS:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not False:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    from gpuyard.cli.tenants import cap

    if value is None:
        return "not set"
    if value is True:
        return "true"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else cap(value)
