"""Prints the name of an image with `sh` and `sleep` on this machine's Docker engine, for the demo.

One that is there is taken; else one is made on the spot, without a registry: from the machine's
static busybox, or from its own shell with the libraries that it needs. Exits 1 with the reason on
stderr where there is no engine or nothing to make an image from.
"""

import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import docker
import docker.errors

ROOT: Final = Path(__file__).resolve().parent.parent
OWN: Final = "gpuyard-demo/shell"
TAG: Final = "1"
KNOWN: Final = ("busybox", "alpine", "debian", "ubuntu")
PROGRAMS: Final = ("sh", "sleep")
SOCKET: Final = "/var/run/docker.sock"


def main() -> int:
    address = os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}"
    if reason := _silence(address.removeprefix("unix://")):
        return _no(reason)
    try:
        with docker.APIClient(base_url=address, version="auto", timeout=60) as api:
            image = _found(api) or _made(api)
    except (docker.errors.DockerException, OSError, RuntimeError) as fault:
        return _no(f"no image can be had: {fault}")
    print(image)
    return 0


def _no(reason: str) -> int:
    print(f"{reason}: the jobs run as plain processes", file=sys.stderr)
    return 1


def _silence(path: str) -> str | None:
    """Why no engine answers there; asked by hand, since the SDK's answer is a long one."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            head = connection.recv(64)
    except OSError as fault:
        return f"no Docker engine answers on {path} ({(fault.strerror or str(fault)).lower()})"
    return None if b" 200 " in head else f"what answers on {path} is no Docker engine"


def _found(api: docker.APIClient) -> str | None:
    """An image of the engine that surely has a shell."""
    tags = [str(tag) for image in api.images() for tag in image.get("RepoTags") or ()]
    for name in (OWN, "gpuyard-test/busybox", *KNOWN):
        for tag in sorted(tags):
            if tag.rpartition(":")[0] == name:
                return tag
    return None


def _made(api: docker.APIClient) -> str:
    sys.path.insert(0, str(ROOT))
    from tests.support.busybox import busybox_path, import_busybox

    if busybox_path() is not None:
        print("made an image of this machine's busybox", file=sys.stderr)
        return import_busybox(api)
    changes = ["ENV PATH=/bin", 'CMD ["/bin/sh"]']
    api.import_image_from_data(_shell_tar(), repository=OWN, tag=TAG, changes=changes)
    api.inspect_image(f"{OWN}:{TAG}")
    print("made an image of this machine's shell and its libraries", file=sys.stderr)
    return f"{OWN}:{TAG}"


def _shell_tar() -> bytes:
    """A root file system of the machine's own programs and what the loader says they need."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        libraries: set[str] = set()
        for name in PROGRAMS:
            path = shutil.which(name)
            if path is None:
                raise RuntimeError(f"this machine has no {name}")
            tar.add(os.path.realpath(path), arcname=f"bin/{name}")
            libraries |= set(_libraries(path))
        for library in sorted(libraries):
            tar.add(os.path.realpath(library), arcname=library.lstrip("/"))
    return buffer.getvalue()


def _libraries(path: str) -> Iterator[str]:
    """Absolute paths from `ldd`, the loader included; none for a static program."""
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        match = re.search(r"(?:=> )?(/\S+) \(0x", line)
        if match:
            yield match[1]


if __name__ == "__main__":
    sys.exit(main())
