"""The image of the tests, made on the spot from the machine's static busybox."""

import fcntl
import io
import os
import shutil
import struct
import subprocess
import tarfile
import tempfile
from pathlib import Path

import docker
import docker.errors

REPOSITORY = "gpuyard-test/busybox"
TAG = "1"  # a change of what is in the image takes a new tag, or engines keep the old one
BUSYBOX = f"{REPOSITORY}:{TAG}"

_PT_INTERP = 3
_FILES = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
}


def busybox_path() -> Path | None:
    """The machine's busybox, None where there is none or it needs libraries."""
    found = shutil.which("busybox", path=os.pathsep.join([os.environ["PATH"], "/bin"]))
    return Path(found) if found and _is_static(Path(found)) else None


def import_busybox(api: docker.APIClient) -> str:
    """Makes the image on that engine unless it is there, and returns its name.

    Processes that do so at once make it once. Raises RuntimeError without a static busybox.
    """
    with Path(tempfile.gettempdir(), f"gpuyard-test-busybox-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            api.inspect_image(BUSYBOX)
        except docker.errors.ImageNotFound:
            changes = ["ENV PATH=/bin", 'CMD ["/bin/sh"]']
            api.import_image_from_data(
                busybox_tar(), repository=REPOSITORY, tag=TAG, changes=changes
            )
            api.inspect_image(BUSYBOX)
    return BUSYBOX


def busybox_tar() -> bytes:
    """A root file system of busybox alone, with a link for each of its commands in /bin."""
    path = busybox_path()
    if path is None:
        raise RuntimeError("no static busybox: apt-get install busybox-static")
    listed = subprocess.run([path, "--list"], check=True, capture_output=True, text=True).stdout
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            _add(tar, name, kind=tarfile.DIRTYPE, mode=mode)
        _add(tar, "bin/busybox", data=path.read_bytes(), mode=0o755)
        for name, data in _FILES.items():
            _add(tar, name, data=data)
        for applet in sorted(set(listed.split()) - {"busybox"}):
            _add(tar, f"bin/{applet}", kind=tarfile.SYMTYPE, target="busybox")
    return buffer.getvalue()


def _add(
    tar: tarfile.TarFile,
    name: str,
    *,
    kind: bytes = tarfile.REGTYPE,
    data: bytes = b"",
    mode: int = 0o644,
    target: str = "",
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, len(data), target
    tar.addfile(info, io.BytesIO(data))


def _is_static(path: Path) -> bool:
    """True when the program asks for no loader: Debian's other busybox needs the C library."""
    head = path.read_bytes()
    if head[:5] != b"\x7fELF\x02":
        return False
    (start,) = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<HH", head, 54)
    kinds = (struct.unpack_from("<I", head, start + number * size)[0] for number in range(count))
    return _PT_INTERP not in kinds
