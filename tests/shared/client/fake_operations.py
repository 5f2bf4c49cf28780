"""Canned answers to the operations on nodes and tenants, for `FakeYard`. They decide little."""

from typing import Any

from gpuyard.errors import Conflict, UnknownThing

Body = dict[str, Any]
NO_LIMITS: Body = dict.fromkeys(("gpus", "gpu_memory_gib", "running_jobs", "queued_jobs"))
NO_CAPS: Body = dict.fromkeys(
    (
        *("max_gpus", "max_runtime", "default_runtime", "default_gpus"),
        *("default_cpus_per_gpu", "default_memory_mib_per_gpu", "max_priority"),
    )
)
WHY: Body = {
    "v": 1,
    "job": "waits",
    "state": "queued",
    "verdict": {
        "code": "insufficient_gpus",
        "message": "0/3 nodes fit: 1 node_cordoned, 2 insufficient_gpus (asked 4, most free 2)",
        "since": "2026-01-01T00:00:00Z",
        "counts": {"node_cordoned": 1, "insufficient_gpus": 2},
        "limit": None,
        "impossible_now": False,
    },
    "nodes": [
        {
            "name": "a100-0",
            "fits": False,
            "reasons": [{"code": "node_cordoned", "asked": None, "have": None, "unit": None}],
        },
        {
            "name": "a100-1",
            "fits": False,
            "reasons": [{"code": "insufficient_gpus", "asked": 4, "have": 2, "unit": "GPUs"}],
        },
        {
            "name": "rtx-0",
            "fits": False,
            "reasons": [{"code": "insufficient_gpus", "asked": 4, "have": 0, "unit": "GPUs"}],
        },
    ],
    "changes": [
        {"kind": "ask_less", "text": "ask for 2 GPUs or fewer"},
        {"kind": "uncordon", "text": "gpuyard uncordon a100-0"},
    ],
}
STATUS: Body = {
    "v": 1,
    "yard": "abc123",
    "leader": {"token": [1, 7], "commits": 40},
    "bus": {"url": "nats://s3cret@127.0.0.1:4222", "version": "2.12.1"},
    "nodes": {"ready": 2, "lost": 1},
    "gpus": {"total": 24, "free": 10, "used": 12, "foreign": 1, "ill": 1},
    "queue": {"quota_exceeded": 1, "insufficient_gpus": 3},
    "healthy": True,
}


def tenant_view(name: str, *, exists: bool = True, **more: Any) -> Body:
    """A tenant's view without limits, and what a test says otherwise."""
    view: Body = {
        "v": 1,
        "tenant": name,
        "exists": exists,
        "limits": dict(NO_LIMITS),
        "per_job": dict(NO_CAPS),
        "models": None,
        "share_across_tenants": False,
        "priority": None,
        "weight": None,
        "used": {"gpus": 0.0, "gpu_memory_gib": 0.0, "running_jobs": 0, "queued_jobs": 0},
        "over": [],
    }
    return view | more


class FakeOperations:
    """The part of `FakeYard` that has no jobs in it."""

    def __init__(self) -> None:
        self.nodes: list[Body] = []
        self.tenants: dict[str, Body] = {}
        self.why: Body = WHY
        self.dry_run: Body = {
            "fits": True,
            "node": "a100-0",
            "gpus": ["GPU-6a195a81"],
            "verdict": None,
            "notes": [],
            "why": WHY | {"job": None, "state": None},
        }
        self.status: Body = STATUS

    def node(self, name: str) -> Body:
        for node in self.nodes:
            if node["name"] == name:
                return node
        raise UnknownThing(f"no node {name}", code="unknown_node")

    def _do_nodes(self, body: Body) -> Body:
        return {"items": self.nodes, "next": None}

    def _do_node(self, body: Body) -> Body:
        return {"node": self.node(body["name"])}

    def _do_cordon(self, body: Body) -> Body:
        node = self.node(body["name"])
        if body["gpu"]:
            gpu = next(gpu for gpu in node["gpus"] if gpu["uuid"] == body["gpu"])
            gpu["cordoned"] = {"reason": body["reason"], "since": None}
            gpu["allocatable_milli"] = 0
        else:
            node["scheduling"] = "cordoned"
        return {"node": node}

    def _do_uncordon(self, body: Body) -> Body:
        node = self.node(body["name"])
        node["scheduling"] = "open"
        return {"node": node}

    def _do_drain(self, body: Body) -> Body:
        node = self.node(body["name"])
        node["scheduling"] = "draining"
        return {"node": node}

    def _do_forget(self, body: Body) -> Body:
        node = self.node(body["name"])
        if node["state"] == "ready":
            raise Conflict(f"node {body['name']} beats: stop its agent first")
        self.nodes.remove(node)
        return {"node": node["name"], "warning": "2 jobs may still run there"}

    def _do_why(self, body: Body) -> Body:
        return {"why": self.why}

    def _do_submit(self, body: Body) -> Body:
        assert body["dry_run"] is True
        return {"dry_run": self.dry_run}

    def _do_tenants(self, body: Body) -> Body:
        return {"items": [self.tenants[name] for name in sorted(self.tenants)], "next": None}

    def _do_tenant(self, body: Body) -> Body:
        if body["name"] == "default" and "default" not in self.tenants:
            return {"tenant": tenant_view("default", exists=False)}
        if body["name"] not in self.tenants:
            raise UnknownThing(f"no tenant {body['name']}", code="unknown_tenant")
        return {"tenant": self.tenants[body["name"]]}

    def _do_tenant_apply(self, body: Body) -> Body:
        document = body["document"]
        before = self.tenants.get(document["tenant"])
        after = tenant_view(document["tenant"])
        for part in ("limits", "per_job"):
            after[part] |= document.get(part) or {}
        after["models"] = document.get("models")
        if not body["dry_run"]:
            self.tenants[document["tenant"]] = after
        return {"tenant": after, "changed": after != before, "before": before}

    def _do_tenant_delete(self, body: Body) -> Body:
        view = self._do_tenant(body)["tenant"]
        if view["used"]["running_jobs"]:
            raise Conflict(f"tenant {body['name']} has unfinished jobs: cancel them first")
        del self.tenants[body["name"]]
        return {"tenant": view | {"exists": False}}

    def _do_status(self, body: Body) -> Body:
        return self.status

    def _do_version(self, body: Body) -> Body:
        return {"version": "0.1.0", "yard": "abc123"}
