"""What the random yards of `test_state_machine` are drawn from: names, jobs and limits."""

from typing import Any

from hypothesis import strategies as st

NODES = ("a", "b", "c")
IDS = ("j0", "j1", "j2", "j3", "j4", "j5")
TENANTS = ("default", "team-b")
FENCE_S = 60
names = st.sampled_from(NODES)
ids = st.sampled_from(IDS)
rarely = st.sampled_from([False, False, False, True])
_GPUS = (0, 1, 1, 1, 2, "all", "device=0", "device=1,0", "8GiB", "30%", "8GiB,60%", "100%")
_INSTANCES = ("mig=1g.10gb", "mig=1g.10gb:2", "mig=3g.40gb")
specs = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from([*_GPUS, *_INSTANCES]),
        "priority": st.sampled_from([10, 50, 50, 90]),
        "retries": st.sampled_from(
            [0, 5, {"max": 5, "backoff": 0}, {"max": 1, "when": ["user", "platform"]}]
        ),
    },
    optional={
        "on_partition": st.sampled_from(["keep", {"stop_after": FENCE_S}, {"stop_after": FENCE_S}]),
        "cpus": st.sampled_from([1, 3, 100]),
        "memory_mib": st.sampled_from([1024, 4096]),
        "node": names,
        "where": st.lists(
            st.sampled_from(["gpu-memory>=40", "gpu-name!=*A100*", "zone=x", "node!=a", "!zone"]),
            max_size=2,
            unique=True,
        ).filter(lambda lines: not {"zone=x", "!zone"} <= set(lines)),
        "prefer": st.sampled_from([["gpu-memory>=40"], ["zone=x", "gpu-name=*4090"]]),
        "tolerate": st.sampled_from([["cordon"], ["cordon:repair"]]),
        "preemptible": st.just(True),
        "max_runtime": st.sampled_from([40, 120, 600]),
        "stop_grace": st.sampled_from([1, 20]),
        "hold": rarely,
        "array": st.sampled_from(["0-1", "0-3", "0-5%2", "7,3%1"]),
        "not_before": st.sampled_from(["5s", "40s"]),
        "deadline": st.sampled_from(["60s", "200s"]),
        "after": st.lists(
            st.fixed_dictionaries(
                {"job": ids, "when": st.sampled_from(["succeeded", "failed", "ended", "ended"])}
            ),
            max_size=2,
        ),
        "nodes": st.sampled_from([2, 2, 3]),
    },
).map(lambda spec: _as_gang(spec) if "nodes" in spec else spec)
tenants = st.fixed_dictionaries(
    {
        "limits": st.fixed_dictionaries(
            {},
            optional={
                "gpus": st.sampled_from([0.5, 1, 2, 3, 8]),
                "gpu_memory_gib": st.sampled_from([8, 30, 50, 100]),
                "running_jobs": st.sampled_from([0, 1, 2, 5]),
                "queued_jobs": st.sampled_from([1, 3]),
            },
        ),
        "per_job": st.sampled_from([{}, {}, {"max_gpus": 1}, {"max_gpus": 0.5}]),
        "models": st.sampled_from([None, None, ["*4090"], ["nvidia-a100*"]]),
        "share_across_tenants": st.booleans(),
        "weight": st.sampled_from([1, 1, 3]),
    }
)


def _as_gang(spec: dict[str, Any]) -> dict[str, Any]:
    """Without what names one node."""
    kept = {key: value for key, value in spec.items() if key != "node"}
    is_by_id = str(kept["gpus"]).startswith("device=")
    return kept | {"gpus": 1} if is_by_id else kept
