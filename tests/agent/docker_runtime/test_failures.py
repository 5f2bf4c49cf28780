"""Every text that engines are known to refuse with, and what the yard makes of it."""

import errno

import pytest

from gpuyard.model.reasons import REASONS, EndReason
from gpuyard_agent.docker_runtime.failures import (
    pull_refusal,
    refusal,
    start_exit_code,
    unavailable,
)
from gpuyard_agent.docker_runtime.streams import StreamBroken

_GPU = 'could not select device driver "" with capabilities: [[gpu]]'
_RUNC = "failed to create shim task: OCI runtime create failed: runc create failed: "


@pytest.mark.parametrize(
    ("status", "text", "reason", "temporary", "mend"),
    [
        (404, "No such image: a/b:1", "image_not_found", True, ""),
        (500, _GPU, "runtime_error", False, "nvidia-ctk runtime configure"),
        (500, 'could not select device driver "cdi" with capabilities: []', "runtime_error",
         False, "nvidia-ctk cdi generate"),
        (500, "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-a",
         "runtime_error", False, "nvidia-ctk cdi generate"),
        (400, "Unknown runtime specified nvidia", "runtime_error", False, "nvidia-ctk runtime"),
        (400, "unknown or invalid runtime name: nvidia", "runtime_error", False, "nvidia-ctk"),
        (500, _RUNC + "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4",
         "cuda_incompatible", False, ""),
        (500, _RUNC + "nvidia-container-cli: nvml error: driver/library version mismatch",
         "runtime_error", False, "reboot"),
        (500, "write /var/lib/docker/x: no space left on device", "no_space", False,
         "docker image prune"),
        (500, 'exec: "docker-init": executable file not found in $PATH', "runtime_error", False,
         "tini"),
        (400, "No command specified", "invalid", False, ""),
        (400, "invalid reference format: repository name must be lowercase", "invalid", False, ""),
        (400, "no such image: A/b: invalid reference format: repository name must be lowercase",
         "invalid", False, ""),
        (500, "unable to find user nosuch: no matching entries in passwd file", "invalid", False,
         ""),
        (400, "Minimum memory limit allowed is 6MB", "invalid", False, ""),
        (500, "Cannot mkdir: /etc/passwd is not a directory", "invalid", False, ""),
        (500, _RUNC + "wrong rlimit value: RLIMIT_BAD: unknown", "invalid", False, ""),
        (400, 'invalid mount config for type "bind": bind source path does not exist: /data',
         "runtime_error", False, "make that folder on the node"),
        (500, ("driver failed programming external connectivity: Bind for 0.0.0.0:80 failed: port "
         "is already allocated"), "runtime_error", False, ""),
        (404, "network lab not found", "runtime_error", False, "docker network create"),
        (404, "No such container: abc", "runtime_error", True, ""),
        (409, "removal of container abc is already in progress", "runtime_error", True, ""),
        (500, "context deadline exceeded: unknown", "runtime_error", True, ""),
        (500, "something nobody has seen", "runtime_error", False, ""),
        (500, "", "runtime_error", False, ""),
    ],
)  # fmt: skip
def test_a_refused_container(
    status: int, text: str, reason: str, temporary: bool, mend: str
) -> None:
    found = refusal(status, text)

    assert (found.reason, found.temporary, found.status) == (reason, temporary, status)
    assert mend in str(found)
    assert text in str(found)
    assert EndReason(found.reason) in REASONS


@pytest.mark.parametrize(
    ("status", "text", "reason", "temporary", "mend"),
    [
        (404, ("pull access denied for a/b, repository does not exist or may require 'docker "
         "login': denied: requested access to the resource is denied"), "image_not_found", False,
         "check the image's name"),
        (404, "manifest for a/b:9 not found: manifest unknown: manifest unknown",
         "image_not_found", False, "check the image's name"),
        (500, "no matching manifest for linux/arm64/v8 in the manifest list entries",
         "image_not_found", False, "no build for this node's processor"),
        (404, "failed to resolve reference \"r.example/a:1\": r.example/a:1: not found",
         "image_not_found", False, "check the image's name"),
        (500, "Get \"https://r.example/v2/\": unauthorized: incorrect username or password",
         "image_auth", False, "docker login"),
        (500, "Head \"https://r.example/v2/a/manifests/1\": no basic auth credentials",
         "image_auth", False, "docker login"),
        (500, "denied: requested access to the resource is denied", "image_auth", False,
         "docker login"),
        (200, "toomanyrequests: You have reached your pull rate limit", "image_pull_failed", True,
         "registry mirror"),
        (500, "received unexpected HTTP status: 429 Too Many Requests", "image_pull_failed", True,
         "registry mirror"),
        (200, "write /var/lib/docker/tmp/x: no space left on device", "no_space", False,
         "docker system df"),
        (500, "dial tcp 127.0.0.1:1: connect: connection refused", "image_pull_failed", True,
         "way to the registry"),
        (500, "dial tcp: lookup r.example: no such host", "image_pull_failed", True,
         "DNS of the node"),
        (500, "net/http: TLS handshake timeout", "image_pull_failed", True, "way to the registry"),
        (200, "unexpected EOF", "image_pull_failed", True, "docker pull"),
        (500, "received unexpected HTTP status: 503 Service Unavailable", "image_pull_failed",
         True, "fails by itself"),
        (500, "tls: failed to verify certificate: x509: certificate signed by unknown authority",
         "image_pull_failed", False, "trust that registry"),
        (500, "http: server gave HTTP response to HTTPS client", "image_pull_failed", False,
         "trust that registry"),
        (400, "invalid reference format", "invalid", False, ""),
    ],
)  # fmt: skip
def test_a_refused_pull(status: int, text: str, reason: str, temporary: bool, mend: str) -> None:
    found = pull_refusal(status, text)

    assert (found.reason, found.temporary) == (reason, temporary)
    assert str(found).startswith(f"{text}: " if mend else text)
    assert mend in str(found)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (_RUNC + 'exec: "nosuch": executable file not found in $PATH: unknown', 127),
        (_RUNC + 'exec: "/x/y": stat /x/y: no such file or directory: unknown', 127),
        (_RUNC + 'exec: "/etc": permission denied: unknown', 126),
        (_RUNC + 'exec: "/etc": is a directory: unknown', 126),
        (_RUNC + 'exec: "/x": exec format error: unknown', 126),
        (_RUNC + 'chdir to cwd ("/root") set in config.json failed: permission denied', 126),
        ('exec: "docker-init": executable file not found in $PATH', None),
        ("error mounting /data: permission denied", None),
        (_GPU, None),
    ],
)
def test_the_code_of_a_command_that_could_not_begin(text: str, code: int | None) -> None:
    assert start_exit_code(text) == code


@pytest.mark.parametrize(
    ("error", "node_reason", "said"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "docker_permission",
         ("permission denied on /s: add the agent's user to group docker (which is as good as root)"
         " or run it as root")),
        (FileNotFoundError(errno.ENOENT, "x"), "docker_unreachable", "/s does not exist"),
        (ConnectionRefusedError(), "docker_unreachable", "nothing answers on /s"),
        (TimeoutError(), "docker_unreachable", "does not answer in time"),
        (ConnectionResetError(104, "reset"), "docker_unreachable", "went away"),
    ],
)  # fmt: skip
def test_an_engine_that_cannot_be_reached(error: OSError, node_reason: str, said: str) -> None:
    broken = StreamBroken(str(error))
    broken.__cause__ = error

    for found in (unavailable(error, "/s"), unavailable(broken, "/s")):
        assert (found.node_reason, found.temporary) == (node_reason, True)
        assert said in str(found)
        assert found.reason in list(EndReason)


def test_an_answer_that_was_cut_off_is_told_in_its_own_words() -> None:
    cut = unavailable(StreamBroken("the engine closed the connection"), "/s")

    assert str(cut) == "the Docker Engine on /s went away: the engine closed the connection"
