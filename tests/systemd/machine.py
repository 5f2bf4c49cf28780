"""A Debian machine whose first process is systemd, as a container of this host's Docker Engine.

Its root file system is made once, by debootstrap from the mirror that the host's own apt uses, and
kept in ~/.cache/gpuyard. What it gets of the host is its kernel: it has control groups, a network
of loopback alone, a journal and a Docker Engine of its own.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.busybox import BUSYBOX

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard"
HOST_NAME: Final = "gpu-07"
ADDRESS: Final = "10.20.0.5"
"""Both as in docs/fleet.md."""
PACKAGES: Final = (
    "systemd,systemd-sysv,dbus,procps,iproute2,openssl,ca-certificates,"
    "python3,python3-venv,docker.io,iptables"
)
HOSTS_OWN: Final = (
    "systemd-sysctl.service",
    "systemd-modules-load.service",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
)
"""Units that would reach through to the host's kernel."""
_SYS_RESOURCE: Final = 24
# The machine's own control groups, its address, and a boot of its own: a container's kernel is not
# started anew with it. ProtectKernelTunables would show the kernel's own to the agent.
_BOOT: Final = f"""
set -e
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip address add {ADDRESS}/24 dev lo
cat /proc/sys/kernel/random/uuid > /run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
mkdir -p /run/systemd/system/gpuyard-agent.service.d
cat > /run/systemd/system/gpuyard-agent.service.d/boot.conf <<END
[Service]
BindReadOnlyPaths=/run/boot_id:/proc/sys/kernel/random/boot_id
END
exec /sbin/init
"""
COMMAND_S: Final = 180.0


class Failed(AssertionError):
    """A command on the machine ended with another code than 0; the text has what it printed."""


class Machine:
    """Runs commands on a machine that was booted by `booted`."""

    def __init__(self, container: str) -> None:
        self._container = container

    def sh(self, script: str, *, timeout_s: float = COMMAND_S) -> str:
        """What bash prints, both streams in one; raises Failed where it does not end with 0."""
        code, told = self.tried(script, timeout_s=timeout_s)
        if code:
            raise Failed(f"{code} from: {script.strip()}\n{told}")
        return told

    def tried(self, script: str, *, timeout_s: float = COMMAND_S) -> tuple[int, str]:
        """The exit code of bash and what it prints."""
        done = subprocess.run(
            ["docker", "exec", "-i", "--workdir", "/root", self._container, "bash", "-s"],
            input=f"exec 2>&1\n{script}\n",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return done.returncode, (done.stdout + done.stderr).strip()

    def put(self, path: Path, target: str) -> None:
        """Copies a file or folder of this host."""
        _docker("cp", str(path), f"{self._container}:{target}")

    def write(self, path: str, text: str) -> None:
        self.sh(f"mkdir -p $(dirname {path}); cat > {path} <<'END_OF_FILE'\n{text}\nEND_OF_FILE")

    def reboot(self) -> None:
        """Shuts down as a machine does, and boots again with the same disk."""
        _docker("stop", "--time", "90", self._container)
        _docker("start", self._container)
        self.await_boot()

    def await_boot(self) -> str:
        """The state of the system once it has started, such as `running` or `degraded`."""
        # The bus is there a moment after the first process is.
        script = "until busctl status >/dev/null 2>&1; do sleep 0.1; done; "
        return self.tried(script + "systemctl is-system-running --wait")[1]

    def show(self, unit: str, *names: str) -> list[str]:
        """Properties of a unit, in the order asked for."""
        asked = " ".join(f"-p {name}" for name in names)
        lines = self.sh(f"systemctl show {unit} {asked}").splitlines()
        told = dict(line.split("=", 1) for line in lines)
        return [told[name] for name in names]

    def journal(self, unit: str, *options: str) -> list[dict[str, str]]:
        """Records of a unit that it wrote itself, oldest first."""
        told = self.sh(f"journalctl -u {unit} -o json {' '.join(options)} _TRANSPORT=stdout")
        return [json.loads(line) for line in told.splitlines() if line.startswith("{")]


@contextmanager
def booted(mirror: str | None) -> Iterator[Machine]:
    """A machine that has just started; nothing of it is left afterwards."""
    tag = f"gpuyard-test/systemd:{os.getpid()}"
    _docker("import", str(_root_file_system(mirror)), tag)
    container = ""
    try:
        container = _docker("run", "--detach", *_options(), tag, "/bin/sh", "-c", _BOOT).strip()
        machine = Machine(container)
        machine.await_boot()
        yield machine
    finally:
        if container:
            _docker("rm", "--force", "--volumes", container)
        _docker("rmi", tag)


def load_image(machine: Machine, tar: Path) -> None:
    """Gives the machine's own engine the image of the tests, from a root file system."""
    machine.put(tar, "/root/image.tar")
    changes = "--change 'ENV PATH=/bin' --change 'CMD [\"/bin/sh\"]'"
    machine.sh(f"docker import {changes} /root/image.tar {BUSYBOX} && rm /root/image.tar")


def wheels(python_version: str) -> Path:
    """A folder with the package's wheel and all that it needs, for that Python."""
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-dist-"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    root = Path(__file__).parents[2]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(root)])
    (wheel,) = folder.glob("gpuyard-*.whl")
    freeze = subprocess.run(
        [*pip, "freeze", "--exclude-editable"], check=True, capture_output=True, text=True
    )
    constraints = folder / "constraints.txt"
    constraints.write_text(freeze.stdout)
    only = ["--only-binary", ":all:", "--python-version", python_version]
    fetch = ["download", "--dest", str(folder), "--constraint", str(constraints), *only]
    _run([*pip, *fetch, f"{wheel}[all]"])
    return folder


def _options() -> list[str]:
    """A privileged container in all but name: the host may itself lack a capability."""
    options = [
        *("--hostname", HOST_NAME, "--network", "none", "--stop-signal", "SIGRTMIN+3"),
        *("--tmpfs", "/run:exec", "--tmpfs", "/run/lock", "--tmpfs", "/tmp"),
        *("--volume", "/var/lib/docker", "--env", "container=docker", "--cgroupns", "private"),
        *("--cap-add", "ALL", "--device-cgroup-rule", "a *:* rwm"),
    ]
    for option in ("seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined"):
        options += ["--security-opt", option]
    return options if has_sys_resource() else [*options, "--cap-drop", "SYS_RESOURCE"]


def has_sys_resource() -> bool:
    """Whether this host lets a process be spared when memory runs out."""
    status = Path("/proc/self/status").read_text()
    bound = next(line.split()[1] for line in status.splitlines() if line.startswith("CapBnd:"))
    return bool(int(bound, 16) >> _SYS_RESOURCE & 1)


def _root_file_system(mirror: str | None) -> Path:
    suite = _release().get("VERSION_CODENAME", "")
    made_of = f"{suite} {platform.machine()} {PACKAGES} {HOSTS_OWN}"
    name = f"systemd-{suite}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.tar"
    kept = CACHE / name
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Not in /tmp, which may be mounted without devices.
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            root = Path(folder) / "root"
            source = mirror or _mirror(suite)
            print(f"making a root file system of {suite} from {source}: minutes", flush=True)
            minimal = ["--variant=minbase", f"--include={PACKAGES}"]
            _run(["debootstrap", *minimal, suite, str(root), source])
            _run(["systemctl", f"--root={root}", "mask", "--quiet", *HOSTS_OWN])
            fresh = Path(folder) / name
            _run(["tar", "-C", str(root), "--exclude=./var/cache/apt/*.deb", "-cf", fresh, "."])
            os.replace(fresh, kept)
    return kept


def _release() -> dict[str, str]:
    lines = Path("/etc/os-release").read_text().splitlines()
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def _mirror(suite: str) -> str:
    """Where the host's apt has its main packages from."""
    words = ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)"]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = [line.split() for line in told.splitlines()]
    for line in found:
        if line[:2] == [suite, "main"]:
            return line[2]
    raise SystemExit(f"apt names no mirror of {suite}: give one with --mirror")


def check_tools() -> None:
    """Ends with one line where something is missing that this needs."""
    missing = [tool for tool in ("docker", "debootstrap") if shutil.which(tool) is None]
    if missing:
        raise SystemExit(f"not installed: {', '.join(missing)}")
    if os.geteuid():
        raise SystemExit("debootstrap needs root")


def _docker(*words: str) -> str:
    return _run(["docker", *words])


def _run(words: list[str | Path]) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode:
        told = (done.stdout + done.stderr).strip().splitlines()
        raise SystemExit("\n".join([f"{' '.join(map(str, words[:2]))} failed:", *told[-20:]]))
    return done.stdout
