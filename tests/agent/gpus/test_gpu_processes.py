"""Whose process is on a GPU: read from /proc in all the forms that engines write."""

import os
import pwd
from pathlib import Path

import pytest

from gpuyard_agent.gpus.processes import (
    GpuProcess,
    OwnProcesses,
    ProcIdentities,
    containers_of,
    foreign_processes,
)

ID = "0123456789abcdef" * 4
INNER = "fedcba9876543210" * 4


def add_process(
    root: Path,
    pid: int,
    *,
    uid: int = 4242,
    cgroup: str = "0::/user.slice\n",
    comm: str = "python3",
    parent: int = 1,
    session: int | None = None,
    start: int = 100,
) -> None:
    folder = root / str(pid)
    folder.mkdir(exist_ok=True)
    rest = f"S {parent} {session or pid} {session or pid} " + "0 " * 15 + f"{start} 0 0"
    (folder / "stat").write_text(f"{pid} (a (strange) name) {rest}\n")
    (folder / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    (folder / "cgroup").write_text(cgroup)
    (folder / "comm").write_text(f"{comm}\n")


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/docker/{ID}\n",
        f"0::/system.slice/docker-{ID}.scope\n",
        f"12:memory:/docker/{ID}\n11:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/\n",
        f"9:devices:/system.slice/docker-{ID}.scope\n0::/system.slice/docker-{ID}.scope\n",
        f"0::/../../docker/{ID}/sub\n",
        f"0::/machine.slice/libpod-{ID}.scope/container\n",
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope\n",
        f"0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-{ID}.scope\n",
        f"0::/kubepods/besteffort/pod8a5f/{ID}\n",
        f"0::/system.slice/crio-{ID}.scope\n",
    ],
)
def test_the_container_is_found_in_every_form(cgroup: str) -> None:
    assert containers_of(cgroup) == (ID,)


@pytest.mark.parametrize(
    "cgroup", ["0::/init.scope\n", "", f"0::/x/{ID}0\n", "0::/user.slice/user-1000.slice\n"]
)
def test_what_is_no_container_is_none(cgroup: str) -> None:
    assert containers_of(cgroup) == ()


def test_a_process_in_a_container_is_named_by_it(tmp_path: Path) -> None:
    add_process(tmp_path, 50, cgroup=f"0::/docker/{ID}\n")
    identities = ProcIdentities(str(tmp_path))
    found = [GpuProcess(50, 100)]
    assert foreign_processes(found, OwnProcesses(), identities) == [
        {"pid": 50, "user": "4242", "container": ID[:12], "memory_mib": 100}
    ]
    named = OwnProcesses(names={ID: "jupyter"})
    assert foreign_processes(found, named, identities)[0]["container"] == "jupyter"


def test_the_user_is_the_login_where_there_is_one(tmp_path: Path) -> None:
    add_process(tmp_path, 50, uid=os.getuid())
    login = pwd.getpwuid(os.getuid()).pw_name
    assert ProcIdentities(str(tmp_path)).of(50).user == login


def test_our_containers_are_not_foreign_even_with_an_engine_inside(tmp_path: Path) -> None:
    add_process(tmp_path, 50, cgroup=f"0::/docker/{ID}\n")
    add_process(tmp_path, 51, cgroup=f"0::/docker/{ID}/docker/{INNER}\n")
    add_process(tmp_path, 52, cgroup=f"0::/docker/{INNER}\n")
    own = OwnProcesses(containers=frozenset({ID}))
    found = [GpuProcess(pid, 1) for pid in (50, 51, 52)]
    foreign = foreign_processes(found, own, ProcIdentities(str(tmp_path)))
    assert [process["pid"] for process in foreign] == [52]


def test_our_pids_stand_for_their_descendants_and_their_session(tmp_path: Path) -> None:
    add_process(tmp_path, 60)
    add_process(tmp_path, 61, parent=60)
    add_process(tmp_path, 62, parent=61)
    add_process(tmp_path, 63, parent=1, session=60)
    add_process(tmp_path, 64)
    own = OwnProcesses(pids=frozenset({60}))
    found = [GpuProcess(pid, 1) for pid in (60, 61, 62, 63, 64)]
    foreign = foreign_processes(found, own, ProcIdentities(str(tmp_path)))
    assert [process["pid"] for process in foreign] == [64]


def test_an_mps_server_is_nobodys(tmp_path: Path) -> None:
    add_process(tmp_path, 70, comm="nvidia-cuda-mps")
    add_process(tmp_path, 71)
    found = [GpuProcess(70, 66), GpuProcess(71, 362)]
    foreign = foreign_processes(found, OwnProcesses(), ProcIdentities(str(tmp_path)))
    assert [process["pid"] for process in foreign] == [71]


def test_a_process_that_cannot_be_looked_at_is_foreign_and_unknown(tmp_path: Path) -> None:
    own = OwnProcesses(containers=frozenset({ID}))
    assert foreign_processes([GpuProcess(80, None)], own, ProcIdentities(str(tmp_path))) == [
        {"pid": 80, "user": None, "container": None, "memory_mib": None}
    ]


def test_a_process_of_ours_that_is_gone_stays_ours(tmp_path: Path) -> None:
    add_process(tmp_path, 90, cgroup=f"0::/docker/{ID}\n")
    identities = ProcIdentities(str(tmp_path))
    own = OwnProcesses(containers=frozenset({ID}))
    assert foreign_processes([GpuProcess(90, 1)], own, identities) == []
    for file in (tmp_path / "90").iterdir():
        file.unlink()
    assert foreign_processes([GpuProcess(90, 1)], own, identities) == []
    identities.forget_all_but([])
    assert len(foreign_processes([GpuProcess(90, 1)], own, identities)) == 1


def test_a_pid_that_is_used_again_is_looked_at_again(tmp_path: Path) -> None:
    add_process(tmp_path, 90, cgroup=f"0::/docker/{ID}\n", start=100)
    identities = ProcIdentities(str(tmp_path))
    assert identities.of(90).containers == (ID,)
    add_process(tmp_path, 90, start=200)
    assert identities.of(90).containers == ()
