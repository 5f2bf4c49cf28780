"""Calls that are one question and one answer: nodes, tenants, why, and the yard as a whole.

What belongs to the yard and not to a tenant is asked as an operator.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from gpuyard.client import submission
from gpuyard.client.answers import Applied, DryRun, Forgotten
from gpuyard.client.api import Api
from gpuyard.client.jobs import Job
from gpuyard.errors import RemoteProtocolError, RequestError
from gpuyard.model.plain import unusable

if TYPE_CHECKING:
    from gpuyard.views.tenants import TenantView
    from gpuyard.views.why import WhyView

NodeView = dict[str, Any]


class Operations(ABC):
    """The part of `AsyncClient` that needs nothing but the API."""

    @property
    @abstractmethod
    def api(self) -> Api:
        """Calls as the client's own tenant."""

    @abstractmethod
    async def operator_api(self) -> Api:
        """Calls as an operator."""

    async def why(self, id: str) -> "WhyView":
        """Why a job is where it is: the verdict, each node's reasons, the smallest changes.

            why = await client.why("train-7")
            print(why["verdict"]["message"])  # 0/3 nodes fit: 3 insufficient_gpus (…)
            for change in why["changes"]:
                print(change["text"])

        Raises UnknownThing.
        """
        return cast("WhyView", _part(await self.api.call("why", {"id": id}), "why"))

    async def hold(self, id: str) -> Job:
        """Keep a queued job from starting until it is released.

            job = await client.hold("train-7")
            print(job.verdict["message"])

        One that is held stays so. Raises Conflict for a job that is not queued, UnknownThing.
        """
        return Job.from_view(_part(await self.api.call("hold", {"id": id}), "job"))

    async def release(self, id: str) -> Job:
        """Let a held job go; one that is not held stays in line.

            job = await client.release("train-7")

        Raises Conflict for a job that is not queued, UnknownThing.
        """
        return Job.from_view(_part(await self.api.call("release", {"id": id}), "job"))

    async def try_submit(self, spec: Any) -> DryRun:
        """What `submit(spec)` would do now; see `submit` with `dry_run`."""
        body = submission.as_map(spec) | {"dry_run": True}
        submission.encoded(body)  # raises TooLarge as a real submission would
        answer = await self.api.call("submit", body)
        return cast(DryRun, _part(answer, "dry_run"))

    async def nodes(self) -> list[NodeView]:
        """Every node as `gpuyard nodes --json` shows it."""
        return [view async for view in self.api.items("nodes", {})]

    async def node(self, name: str) -> NodeView:
        """One node; raises UnknownThing."""
        return _part(await self.api.call("node", {"name": name}), "node")

    async def cordon(
        self, node: str, gpu: str | None = None, reason: str | None = None
    ) -> NodeView:
        """Keep new jobs off a node, or off one GPU of it; what runs there runs on.

            await client.cordon("a100-3", gpu="GPU-6a195a81-…", reason="maintenance")

        Jobs that tolerate the cordon may still start there. Returns the node.
        """
        return await self._on_node("cordon", {"name": node, "gpu": gpu, "reason": reason})

    async def uncordon(self, node: str, gpu: str | None = None) -> NodeView:
        """Let new jobs start on a node or a GPU again; ends a drain too. Returns the node."""
        return await self._on_node("uncordon", {"name": node, "gpu": gpu})

    async def drain(
        self, node: str, reason: str | None = None, *, deadline_s: float | None = None
    ) -> NodeView:
        """Empty a node: no new jobs, and `deadline_s` from now the rest is asked to end.

            await client.drain("a100-3", "new driver", deadline_s=600)
            while (await client.node("a100-3"))["jobs"]:
                await asyncio.sleep(2)

        Returns at once with the node; without a deadline its jobs run to their own end.
        """
        body = {"name": node, "reason": reason, "deadline_s": deadline_s}
        return await self._on_node("drain", body)

    async def forget(self, node: str) -> Forgotten:
        """Take a node that will not come back off the list; its attempts count as over.

        The answer's `warning` says what may still run there. Raises Conflict for a node that
        still reports.
        """
        answer = await (await self.operator_api()).call("forget", {"name": node})
        return {"node": answer.get("node"), "warning": answer.get("warning")}

    async def tenants(self) -> "list[TenantView]":
        """Every tenant with its limits and its use (operators)."""
        api = await self.operator_api()
        return [cast("TenantView", view) async for view in api.items("tenants", {})]

    async def tenant(self, name: str | None = None) -> "TenantView":
        """One tenant, the client's own where none is named; raises UnknownThing.

            tenant = await client.tenant()
            print(tenant["used"]["gpus"], "of", tenant["limits"]["gpus"])

        Another tenant than the own is asked for as an operator.
        """
        is_own = name in (None, self.api.tenant)
        api = self.api if is_own else await self.operator_api()
        answer = await api.call("tenant", {"name": name or self.api.tenant})
        return cast("TenantView", _part(answer, "tenant"))

    async def apply(self, document: Mapping[str, Any], *, dry_run: bool = False) -> Applied:
        """Set a tenant's limits to what a document says; keys that it leaves out are unlimited.

            done = await client.apply({"tenant": "team-a", "limits": {"gpus": 4}})
            print(done["changed"])

        It takes effect at once and ends no running job. With `dry_run` nothing changes. Raises
        RequestError with every fault of the document.
        """
        if faults := list(unusable(document)):
            raise RequestError("; ".join(map(str, faults)), field=faults[0].field)
        body = {"document": dict(document), "dry_run": dry_run}
        answer = await (await self.operator_api()).call("tenant-apply", body)
        tenant = cast("TenantView", _part(answer, "tenant"))
        changed = bool(answer.get("changed"))
        return {"tenant": tenant, "changed": changed, "before": answer.get("before")}

    async def delete_tenant(self, name: str) -> "TenantView":
        """Remove a tenant's limits and its name; raises Conflict while it has unfinished jobs."""
        answer = await (await self.operator_api()).call("tenant-delete", {"name": name})
        return cast("TenantView", _part(answer, "tenant"))

    async def status(self) -> dict[str, Any]:
        """Leader, bus, nodes by state, GPUs and queue: what `gpuyard status --json` shows.

        status = await client.status()
        print(status["gpus"]["free"], "GPUs are free")
        """
        return await self.api.call("status")

    async def version(self) -> dict[str, Any]:
        """The coordinator's version and the yard's id."""
        return await self.api.call("version")

    async def _on_node(self, operation: str, body: Mapping[str, Any]) -> NodeView:
        return _part(await (await self.operator_api()).call(operation, body), "node")


def _part(answer: Mapping[str, Any], key: str) -> dict[str, Any]:
    part = answer.get(key)
    if not isinstance(part, dict):
        raise RemoteProtocolError(f"the yard's answer has no {key}")
    return part
