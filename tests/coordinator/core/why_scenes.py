"""Yards in which job `j` waits, one for each verdict code that exists so far."""

from collections.abc import Callable
from typing import Any

from tests.support.agents import A100_40, A100_80, H200, RTX_4090
from tests.support.yard import Yard

Make = Callable[[], Yard]


def waiting(yard: Yard, **spec: Any) -> Yard:
    yard.submit("j", **spec)
    yard.plan()
    assert yard.states("j") == ["queued"]
    return yard


def foreign(pid: int, memory_mib: int | None, user: str | None = "bob") -> dict[str, Any]:
    return {"pid": pid, "user": user, "container": None, "memory_mib": memory_mib}


def waiting_turn() -> Yard:
    """Placeable, and the planner has not looked yet."""
    yard = Yard()
    yard.node("a", gpus=2)
    yard.node("b", gpus=1)
    yard.submit("j", gpus=2)
    return yard


def quota_exceeded() -> Yard:
    yard = Yard()
    yard.tenant(limits={"gpus": 4})
    yard.node("a", gpus=8)
    for number in range(3):
        yard.submit(f"run{number}", gpus=1, max_runtime="4h")
    yard.plan()
    yard.start("run0")
    return waiting(yard, gpus=2)


def quota_on_model() -> Yard:
    yard = Yard()
    yard.tenant(limits={"gpu_memory_gib": 30})
    yard.node("large", cards=[A100_80])
    yard.node("middle", cards=[A100_40])
    yard.node("small", cards=[RTX_4090])
    yard.cordon("small")
    return waiting(yard, gpus=1)


def insufficient_gpus() -> Yard:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.node("b", gpus=4)
    yard.submit("one", gpus=1, node="a")
    yard.submit("three", gpus=3, node="b")
    yard.plan()
    return waiting(yard, gpus=4)


def insufficient_gpu_memory() -> Yard:
    yard = Yard()
    yard.node("a", cards=[A100_40])
    yard.node("b", cards=[RTX_4090])
    yard.submit("one", gpus="16GiB", node="a")
    yard.plan()
    return waiting(yard, gpus="32GiB")


def insufficient_cpu() -> Yard:
    yard = Yard()
    yard.node("a", cpus=8)
    yard.node("b", cpus=4)
    yard.submit("one", cpus=5.5, node="a")
    yard.plan()
    return waiting(yard, cpus=6)


def insufficient_memory() -> Yard:
    yard = Yard()
    yard.node("a", memory_mib=8192)
    yard.submit("one", memory_mib=2048)
    yard.submit("two", memory_mib=3072)
    yard.plan()
    return waiting(yard, memory_mib=8192)


def where_mismatch() -> Yard:
    yard = Yard()
    yard.node("a", cards=[RTX_4090, H200], labels={"zone": "a"})
    yard.node("b", cards=[A100_80], labels={"zone": "b"})
    return waiting(yard, gpus=1, where=["zone=b", "gpu-memory>=100"])


def model_not_allowed() -> Yard:
    yard = Yard()
    yard.tenant(models=["NVIDIA-A100*"])
    yard.node("a", cards=[RTX_4090])
    yard.node("b", cards=[H200, RTX_4090])
    return waiting(yard, gpus=1)


def node_cordoned() -> Yard:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.node("b", gpus=1)
    yard.node("c", gpus=2)
    yard.cordon("a", reason="maintenance")
    yard.drain("b")
    yard.cordon("c", "0", reason="fan")
    yard.cordon("c", "1")
    return waiting(yard, gpus=1)


def node_unready() -> Yard:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.reasons = [{"code": "disk_low", "message": "full", "gpu": None, "since": None}]
    yard.beat("a")
    return waiting(yard, gpus=1)


def node_lost() -> Yard:
    yard = Yard()
    yard.node("a", gpus=1)
    yard.tick(31)
    return waiting(yard, gpus=1)


def gpu_unhealthy() -> Yard:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    agent.change_sample(0, health={"state": "unhealthy", "reason": "xid 79", "since": None})
    yard.beat("a")
    return waiting(yard, gpus=2)


def gpu_dirty() -> Yard:
    yard = Yard()
    agent = yard.node("a", gpus=1)
    agent.change_sample(0, health={"state": "dirty", "reason": "pid 7", "since": None})
    yard.beat("a")
    return waiting(yard, gpus=1)


def foreign_memory() -> Yard:
    yard = Yard()
    agent = yard.node("a", gpus=2)
    agent.change_sample(0, memory_foreign_mib=9100, foreign=[foreign(41, 9000), foreign(42, 100)])
    agent.change_sample(1, memory_foreign_mib=None, foreign=[foreign(43, None, None)])
    yard.beat("a")
    return waiting(yard, gpus=1)


def node_document_full() -> Yard:
    yard = Yard()
    yard.node("a")
    for number in range(20):
        yard.submit(f"long{number}", command=["x" * 60_000])
    yard.plan()
    return waiting(yard, command=["x" * 60_000])


def reserved_for_other() -> Yard:
    yard = Yard()
    yard.node("a", gpus=4)
    yard.submit("run", gpus=3, max_runtime="2h", stop_grace="10s")
    yard.plan()
    yard.start("run")
    yard.submit("big", gpus=4, priority=60, max_runtime="1h")
    yard.plan()
    return waiting(yard, gpus=1)


SCENES: dict[str, Make] = {
    made.__name__: made
    for made in (
        waiting_turn,
        quota_exceeded,
        quota_on_model,
        insufficient_gpus,
        insufficient_gpu_memory,
        insufficient_cpu,
        insufficient_memory,
        where_mismatch,
        model_not_allowed,
        node_cordoned,
        node_unready,
        node_lost,
        gpu_unhealthy,
        gpu_dirty,
        foreign_memory,
        node_document_full,
        reserved_for_other,
    )
}
LATER = {
    "budget_exhausted",
    "cuda_incompatible",
    "image_space",
    "gang_incomplete",
    "dependency",
    "held",
    "not_before",
    "node_lost_waiting",
    "guarantee_fragmented",
    "mps_uid_conflict",
}
"""Codes of what is not built yet."""
