"""What a node lets jobs do to it."""

import pytest

from gpuyard.messages import POLICY_REFUSED
from gpuyard_agent.core.policy import PERMISSIVE, NodePolicy, PolicyError, parse_policy, refusals
from tests.support.agent_builders import entry


def mounting(source: str) -> dict[str, object]:
    mount = {"source": source, "target": "/t", "read_only": True}
    return dict(entry(mounts=[mount])["spec"])


@pytest.mark.parametrize(
    "source",
    [
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run//docker.sock",
        "/run/./docker.sock",
        "/data/../run/docker.sock",
        "/run/containerd/containerd.sock",
        "/var/run",
        "/run",
        "/",
        "/var/run/",
    ],
)
def test_the_engines_socket_is_never_mounted(source: str) -> None:
    assert refusals(mounting(source), PERMISSIVE)
    assert refusals(mounting(source), NodePolicy(allowed_mounts=("/",)))


@pytest.mark.parametrize(
    "source", ["/data", "/var/lib/data", "/runs/1", "volume-name", "/var/runs"]
)
def test_everything_else_may_be_mounted_without_a_policy(source: str) -> None:
    assert refusals(mounting(source), PERMISSIVE) == []


@pytest.mark.parametrize(
    ("source", "is_allowed"),
    [
        ("/data", True),
        ("/data/team", True),
        ("/database", False),
        ("/data/../etc", False),
        ("/etc", False),
        ("cache", True),
        ("other", False),
    ],
)
def test_mounts_below_allowed_prefixes(source: str, is_allowed: bool) -> None:
    policy = NodePolicy(allowed_mounts=("/data/", "cache"))
    assert (refusals(mounting(source), policy) == []) is is_allowed


def test_images_and_networks_by_pattern() -> None:
    policy = NodePolicy(images=("nvcr.io/*", "busybox"), networks=("bridge", "none"))
    assert refusals(entry()["spec"], policy) == []
    refused = refusals(entry(image="evil", network="host")["spec"], policy)
    assert len(refused) == 2
    assert all(line.startswith(POLICY_REFUSED) for line in refused)


def test_what_no_node_allows_is_told_first() -> None:
    mounts = [{"source": source, "target": "/t"} for source in ("/data", "/run/docker.sock")]
    refused = refusals(entry(mounts=mounts)["spec"], NodePolicy(allowed_mounts=()))
    assert [line.startswith(POLICY_REFUSED) for line in refused] == [False, True, True]


def test_an_empty_list_allows_nothing() -> None:
    assert refusals(mounting("/data"), NodePolicy(allowed_mounts=()))


def test_the_file_is_read_strictly() -> None:
    assert parse_policy({"images": ["a"]}) == NodePolicy(images=("a",))
    for raw in ({"image": ["a"]}, {"images": "a"}, {"networks": [1]}):
        with pytest.raises(PolicyError):
            parse_policy(raw)
