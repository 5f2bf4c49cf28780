"""What other programs call it: docker's, Slurm's and kubectl's words, and the one to use here.

Flags of `docker run` have a list of their own (`docker_flags`): they are part of what is promised.
"""

from typing import Final

COMMANDS: Final[dict[str, str]] = {
    # docker
    "inspect": "job",
    "kill": "cancel",
    "rm": "cancel",
    "stop": "cancel",
    "stats": "nodes",
    # Slurm
    "sacct": "jobs",
    "salloc": "run",
    "sbatch": "submit",
    "scancel": "cancel",
    "sinfo": "nodes",
    "squeue": "jobs",
    "srun": "run",
    # kubectl
    "delete": "cancel",
    "describe": "job",
    "get": "jobs",
    "top": "nodes",
    # anybody's
    "info": "status",
    "list": "jobs",
    "ls": "jobs",
}

_GPUS: Final = "ask for GPUs with --gpus"
_NODE: Final = "choose nodes by --where, one by --node"
_OUTPUT: Final = "'gpuyard logs' has the output"
_TAIL: Final = "'| tail -n N' keeps the last lines"
_TIME: Final = "write --time"

_JOB_FLAGS: Final[dict[str, str]] = {
    "--begin": "write --not-before",
    "--constraint": _NODE,
    "-C": _NODE,
    "--cpus-per-task": "ask for processors with --cpus",
    "--dependency": "write --after",
    "--exclusive": "ask for all GPUs of a node with --gpus all",
    "--gpus-per-node": f"{_GPUS}: they are counted for each node",
    "-G": _GPUS,
    "--gres": _GPUS,
    "--job-name": "write --name",
    "-J": "write --name",
    "--max-runtime": _TIME,
    "--nodelist": _NODE,
    "-N": "write --nodes",
    "--output": _OUTPUT,
    "-o": _OUTPUT,
    "--partition": _NODE,
    "--requeue": "ask for new attempts with --retries",
    "--time-limit": _TIME,
}
FLAGS: Final[dict[str, dict[str, str]]] = {
    "logs": {"--tail": _TAIL, "-n": _TAIL},
    "run": _JOB_FLAGS,
    "submit": _JOB_FLAGS,
}
"""By command: what another program's flag is here."""

ONE_OF: Final[dict[str, str]] = {"jobs": "job ID", "nodes": "node NAME", "tenants": "tenant NAME"}
"""Lists, and what shows one of theirs."""
