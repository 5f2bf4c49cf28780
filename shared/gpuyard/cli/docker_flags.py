"""Flags of `docker run` that the yard does not take, and what to do instead."""

from typing import Final

_POLICY: Final = "what a container may do is the node's own policy"
_NODE: Final = "the yard chooses the node and its devices"

REFUSED: Final[dict[str, str]] = {
    "--add-host": "leave it out: name resolution is the node's",
    "--blkio-weight": _POLICY,
    "--cap-add": _POLICY,
    "--cap-drop": _POLICY,
    "--cgroup-parent": _POLICY,
    "--cgroupns": _POLICY,
    "--cidfile": "the job's id is printed by 'gpuyard run -d' and 'gpuyard submit'",
    "--cpu-shares": "ask for processors with --cpus",
    "--cpuset-cpus": "ask for processors with --cpus",
    "--device": f"{_NODE}; ask for GPUs with --gpus",
    "--device-cgroup-rule": _POLICY,
    "--dns": "leave it out: name resolution is the node's",
    "--expose": "publish a port with -p",
    "--group-add": "name user and group with -u UID:GID",
    "--health-cmd": "a job ends by itself: health checks have no use here",
    "--hostname": "leave it out: the container's name is the yard's",
    "--init": "leave it out: every container has an init",
    "--ipc": "ask for shared memory with --shm-size (GPU jobs have 8 GiB by default)",
    "--link": "leave it out: containers of the yard are not linked",
    "--log-driver": "leave it out: 'gpuyard logs' has the output",
    "--log-opt": "leave it out: 'gpuyard logs' has the output",
    "--mount": "write it as -v SOURCE:TARGET[:ro]",
    "--memory-swap": "limit memory with -m alone",
    "--pid": _POLICY,
    "--platform": f"{_NODE}; choose a node by --where",
    "--privileged": _POLICY,
    "--publish-all": "name each port with -p",
    "-P": "name each port with -p",
    "--read-only": _POLICY,
    "--restart": "a job runs to its end; ask for new attempts with --retries",
    "--security-opt": _POLICY,
    "--stop-signal": "a job is stopped with SIGTERM, then SIGKILL after --stop-timeout",
    "--sysctl": _POLICY,
    "--userns": _POLICY,
    "--volumes-from": "name each folder with -v",
    "-h": "leave it out: the container's name is the yard's (help is --help)",
}
