"""What an engine's refusal means: one table for every text that engines are known to answer with.

Rules of this file:
1. The first row whose pattern is in the text decides; texts are matched without regard to case.
2. A row says the end reason, whether the same call may succeed later on this node, and the mend
   where there is one. A refusal in no row is `runtime_error`, and final for this node.
3. Engines say the same things in a reply's body and inside a stream that began with 200; both
   come through here.
"""

import re
from typing import Final, NamedTuple

from gpuyard.errors import RuntimeFailure
from gpuyard.model.reasons import EndReason


class EngineUnavailable(RuntimeFailure):
    """Nothing answers on the socket; `node_reason` is the code that the node shows for it."""

    def __init__(self, message: str, *, node_reason: str = "docker_unreachable") -> None:
        super().__init__(message, temporary=True)
        self.node_reason = node_reason


class EngineRefused(RuntimeFailure):
    """The engine answered no; `status` is of HTTP (200 inside a stream), `text` has its words."""

    def __init__(
        self, message: str, *, temporary: bool, reason: str, status: int, text: str
    ) -> None:
        super().__init__(message, temporary=temporary, reason=reason)
        self.status = status
        self.text = text


class _Row(NamedTuple):
    pattern: str
    reason: EndReason
    temporary: bool = False
    mend: str | None = None


_USE_TOOLKIT: Final = (
    "install nvidia-container-toolkit on the node, run 'nvidia-ctk runtime configure "
    "--runtime=docker' and restart docker (snap and rootless Docker need the real package)"
)
_CDI: Final = (
    "run 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml' on the node; engines before 25 "
    "have no cdi, and before 28 it must be enabled in daemon.json"
)
_LOGIN: Final = "log the agent's user in on the node with 'docker login'"
_ROOM: Final = (
    "make room under docker's root on the node: 'docker system df' shows what takes it, "
    "'docker image prune' removes images that nothing uses"
)
_NAME: Final = (
    "check the image's name and tag; for a private one log the agent's user in on the node with "
    "'docker login'"
)
_PLATFORM: Final = (
    "it has no build for this node's processor or system: take a tag that has one, or a node of "
    "another kind"
)
_DNS: Final = "check the registry's name and the DNS of the node ('getent hosts' asks it)"
_REACH: Final = (
    "check the node's way to the registry (network, firewall, docker's proxy), or bring the image "
    "to the node with 'docker load'"
)
_REGISTRY: Final = "the registry fails by itself: try again later, or name another one"
_TRY_PULL: Final = "try 'docker pull' on the node, which shows where it fails"

_ANYWHERE: Final = (
    _Row("no space left on device|disk quota exceeded", EndReason.NO_SPACE, mend=_ROOM),
    _Row("context deadline exceeded|transport is closing|error reading from server: eof",
         EndReason.RUNTIME_ERROR, temporary=True),
)  # fmt: skip

_CONTAINER: Final = (
    # Before the next: "no such image: A/b: invalid reference format: repository name must be …".
    _Row("invalid reference format", EndReason.INVALID),
    _Row("no such image", EndReason.IMAGE_NOT_FOUND, temporary=True),
    _Row('could not select device driver "cdi"', EndReason.RUNTIME_ERROR, mend=_CDI),
    _Row("unresolvable cdi devices|cdi device injection failed", EndReason.RUNTIME_ERROR,
         mend=_CDI),
    _Row("could not select device driver", EndReason.RUNTIME_ERROR, mend=_USE_TOOLKIT),
    _Row("unknown runtime specified|unknown or invalid runtime name", EndReason.RUNTIME_ERROR,
         mend=_USE_TOOLKIT),
    _Row("unsatisfied condition: cuda", EndReason.CUDA_INCOMPATIBLE),
    _Row("bind source path does not exist", EndReason.RUNTIME_ERROR,
         mend="make that folder on the node, or choose a node that has it: none is created"),
    _Row("network .* not found", EndReason.RUNTIME_ERROR,
         mend="'docker network create' on the node makes one, 'docker network ls' lists them"),
    _Row("driver/library version mismatch", EndReason.RUNTIME_ERROR,
         mend="reboot the node or reload its NVIDIA kernel modules"),
    _Row('exec: "?docker-init"?', EndReason.RUNTIME_ERROR,
         mend="install tini (docker-init) on the node; Docker's own package brings it"),
    _Row("no command specified|minimum memory limit"
         "|shm size can not be less|invalid port specification", EndReason.INVALID),
    _Row("unable to find (user|group)|no matching entries in (passwd|group) file"
         "|wrong rlimit value|cannot mkdir: .* is not a directory", EndReason.INVALID),
    _Row("no such container|is marked for removal|removal of container .* is already in progress",
         EndReason.RUNTIME_ERROR, temporary=True),
)  # fmt: skip

_PULL: Final = (
    _Row("toomanyrequests|too many requests|rate limit|status: 429", EndReason.IMAGE_PULL_FAILED,
         temporary=True, mend="log the agent's user in, or use a registry mirror"),
    _Row("no matching manifest|does not match the specified platform|no match for platform"
         "|operating system cannot be used", EndReason.IMAGE_NOT_FOUND, mend=_PLATFORM),
    _Row("pull access denied|repository does not exist|manifest unknown|manifest for .* not found"
         "|not found: manifest|name unknown|failed to resolve reference .*: not found"
         "|no such image", EndReason.IMAGE_NOT_FOUND, mend=_NAME),
    _Row("unauthorized|authentication required|no basic auth credentials|incorrect username"
         "|denied: |status: 40[13]|authorization failed", EndReason.IMAGE_AUTH, mend=_LOGIN),
    _Row("invalid reference format|invalid tag format", EndReason.INVALID),
    _Row("certificate signed by unknown authority|gave http response to https client"
         "|certificate is not trusted|tls: failed to verify|x509: ", EndReason.IMAGE_PULL_FAILED,
         mend="make docker on the node trust that registry (/etc/docker/certs.d, daemon.json)"),
    _Row("dial tcp: lookup |no such host|server misbehaving", EndReason.IMAGE_PULL_FAILED,
         temporary=True, mend=_DNS),
    _Row("connection (refused|reset)|no route to host|network is unreachable|timeout|proxyconnect"
         "|deadline exceeded|client.timeout", EndReason.IMAGE_PULL_FAILED, temporary=True,
         mend=_REACH),
    _Row("status(:| code) 5[0-9][0-9]", EndReason.IMAGE_PULL_FAILED, temporary=True,
         mend=_REGISTRY),
    _Row("", EndReason.IMAGE_PULL_FAILED, temporary=True, mend=_TRY_PULL),
)  # fmt: skip


def refusal(status: int, text: str) -> EngineRefused:
    """What an error reply to a call on containers means."""
    return _classify(status, text, (*_CONTAINER, *_ANYWHERE))


def pull_refusal(status: int, text: str) -> EngineRefused:
    """What an error of a pull means, be it a reply's status or a line inside its stream.

    Whatever is not known to be final is taken for the network's fault: trying again may help.
    """
    return _classify(status, text, (_ANYWHERE[0], *_PULL))


def is_ulimit_refusal(text: str) -> bool:
    """True where a start failed because the engine may not raise a limit (rootless, or a virtual
    machine without CAP_SYS_RESOURCE)."""
    return "error setting rlimit" in text


def start_exit_code(text: str) -> int | None:
    """The exit code that docker gives a command that could not be begun: 127 or 126, else None."""
    lower = text.lower()
    if "docker-init" in lower or ("exec: " not in lower and "chdir to cwd" not in lower):
        return None
    if re.search("permission denied|is a directory|not a directory|exec format error", lower):
        return 126
    if re.search("executable file not found|no such file or directory", lower):
        return 127
    return None


def unavailable(error: BaseException, address: str) -> EngineUnavailable:
    """What a connection that could not be made, broke or stayed silent means."""
    # A stream that broke tells why in its cause, or in its own words.
    cause = error if isinstance(error, OSError) else error.__cause__
    if isinstance(cause, PermissionError):
        message = (
            f"permission denied on {address}: add the agent's user to group docker (which is as "
            "good as root) or run it as root"
        )
        return EngineUnavailable(message, node_reason="docker_permission")
    if isinstance(cause, FileNotFoundError):
        return EngineUnavailable(f"no Docker Engine: {address} does not exist; is docker running?")
    if isinstance(cause, ConnectionRefusedError):
        return EngineUnavailable(f"nothing answers on {address}: is docker running?")
    if isinstance(cause, TimeoutError):
        return EngineUnavailable(f"the Docker Engine on {address} does not answer in time")
    detail = cause or error
    return EngineUnavailable(
        f"the Docker Engine on {address} went away: {detail or type(detail).__name__}"
    )


def _classify(status: int, text: str, rows: tuple[_Row, ...]) -> EngineRefused:
    line = " ".join(text.split()) or f"the engine answered with status {status}"
    for row in rows:
        if re.search(row.pattern, line, re.IGNORECASE):
            message = f"{line}: {row.mend}" if row.mend else line
            return EngineRefused(
                message, temporary=row.temporary, reason=row.reason, status=status, text=line
            )
    return EngineRefused(
        line, temporary=False, reason=EndReason.RUNTIME_ERROR, status=status, text=line
    )
