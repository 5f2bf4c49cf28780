"""Installs a yard as docs/fleet.md says under a real systemd; checks what an operator relies on.

    python -m tests.systemd.check_units [--mirror URL]

Needs root, debootstrap, a Docker Engine and a static busybox. The first run fetches packages from
the mirror of the host's apt and keeps what it made in ~/.cache/gpuyard; it takes some minutes each
time. One machine is the host of the bus and a GPU host at once, and has no GPU. Prints a line per
check and ends 0 if all hold. The checks build on each other.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support.busybox import busybox_tar
from tests.support.checks import close, holds
from tests.support.running_yard import eventually
from tests.systemd.machine import (
    Machine,
    booted,
    check_tools,
    has_sys_resource,
    load_image,
    wheels,
)
from tests.systemd.operator import TOKEN, UNITS, Operator
from tests.systemd.recipe import blocks

EXPOSURE: Final = {
    "gpuyard-nats": 2.0,
    "gpuyard-nats-health": 5.0,
    "gpuyard-coordinator": 2.0,
    "gpuyard-keeper": 2.5,
    "gpuyard-agent": 4.0,
}
"""The most that `systemd-analyze security` may say of each; 10 is a unit without any limit."""
STUBBORN: Final = "trap '' TERM; while :; do sleep 1; done"
UNTIL_TOLD: Final = "until test -e /tmp/go; do sleep 0.1; done; exit 7"
SICK_SERVER: Final = """
import http.server
class Sick(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503)
        self.end_headers()
        self.wfile.write(b'{"error": "write error: no space left on device"}')
http.server.HTTPServer(("127.0.0.1", 8333), Sick).serve_forever()
"""


def check_bus_host(operator: Operator) -> str:
    """The page's commands give a bus and a coordinator that leads."""
    machine = operator.machine
    *before, start = blocks("The host of the bus and the coordinator")
    machine.sh("set -e\n" + "\n".join(before))
    took = operator.timed(start)
    assert machine.show("gpuyard-coordinator", "NRestarts") == ["0"]
    led = operator.status("gpuyard-coordinator", "leads yard")
    assert "***" in led, f"a secret in the line of status: {led}"
    return f"started in {took:.1f} s, status: {led}"


def check_gpu_host(operator: Operator) -> str:
    """The page's commands give an agent and a keeper; its look at the log finds what it says."""
    install, look, *_ = blocks("Each GPU host")
    *lines, start = install.strip().splitlines()
    operator.machine.sh(f"set -e\n{TOKEN}" + "\n".join(lines))
    took = operator.timed(start)
    told = operator.machine.sh(look.splitlines()[0])
    assert "no GPUs found" in told and "NVIDIA driver" in told
    ready = operator.status("gpuyard-agent", "on the bus at")
    eventually(lambda: "ready" in operator.cli("nodes"), within_s=10, what="the node ready")
    return f"started in {took:.1f} s, status: {ready}"


def check_analysis(operator: Operator) -> str:
    """systemd finds nothing wrong with the units, and few ways out of them."""
    told = operator.machine.sh("systemd-analyze verify --man=no /etc/systemd/system/gpuyard-*")
    assert not told, told
    found = {}
    for unit, most in EXPOSURE.items():
        lines = operator.machine.sh(f"systemd-analyze security --no-pager {unit}").splitlines()
        found[unit] = float(lines[-1].split(": ")[1].split()[0])
        assert found[unit] <= most, f"{unit}: {found[unit]} of 10, at most {most} expected"
    return f"no fault; exposure {found}"


def check_folders(operator: Operator) -> str:
    """Whose the files are, and who may read them."""
    expected = """
        /etc/gpuyard/agent.toml root:root 600
        /etc/gpuyard/coordinator.toml root:gpuyard 640
        /etc/gpuyard/nats-server.conf root:gpuyard 640
        /etc/gpuyard/nats-token.conf root:gpuyard 640
        /var/lib/gpuyard-agent root:root 700
        /var/lib/gpuyard-agent/keeper root:root 700
        /var/lib/gpuyard-coordinator gpuyard:gpuyard 700
        /var/lib/gpuyard-nats gpuyard:gpuyard 700
    """
    wanted = [line.strip() for line in expected.strip().splitlines()]
    paths = " ".join(line.split()[0] for line in wanted)
    found = operator.machine.sh(f"stat -c '%n %U:%G %a' {paths}").splitlines()
    assert found == wanted, found
    users = operator.machine.sh("ps -o user= -C nats-server -C gpuyard-coordinator | sort -u")
    scores = [
        operator.machine.sh(f"cat /proc/{operator.pid(unit)}/oom_score_adj") for unit in UNITS
    ]
    if has_sys_resource():
        assert scores == ["0", "-900", "0", "-500"], scores
    spared = f"{scores[3]} and {scores[1]}" if has_sys_resource() else "not to be seen on this host"
    return f"{len(wanted)} as documented; agent and keeper spared: {spared}; {users.split()}"


def check_levels(operator: Operator) -> str:
    """The journal knows how grave each line is, and shows it without the mark."""
    machine = operator.machine
    calm = machine.journal("gpuyard-agent", "-p info..info")
    assert any('"connected"' in line["MESSAGE"] for line in calm), calm
    machine.sh("systemctl stop gpuyard-nats; systemctl restart gpuyard-agent")
    warned = eventually(lambda: machine.journal("gpuyard-agent", "-p warning"), within_s=20)
    assert all('"level": "warning"' in line["MESSAGE"] for line in warned), warned
    operator.status("gpuyard-agent", "the bus is away")
    machine.sh("systemctl start gpuyard-nats")
    operator.status("gpuyard-agent", "on the bus at")
    return f"-p warning: {warned[0]['MESSAGE'][:100]}"


def check_restart(operator: Operator) -> str:
    """A restart and a stop of the agent are quick, and leave jobs alone."""
    operator.submit("long", STUBBORN)
    operator.await_job("long", "running")
    operator.submit("ends", UNTIL_TOLD)
    operator.await_job("ends", "running")
    held = operator.container("long")
    took = operator.timed("systemctl restart gpuyard-agent")
    stopped = operator.timed("systemctl stop gpuyard-agent")
    assert operator.machine.show("gpuyard-agent", "Result") == ["success"]
    assert took < 5 and stopped < 3, (took, stopped)
    # It ends while nobody looks.
    operator.machine.sh(f"docker exec {operator.container('ends')} touch /tmp/go")
    operator.machine.sh("systemctl start gpuyard-agent")
    ended = operator.await_job("ends", "failed")
    assert (ended["exit_code"], len(ended["attempts"])) == (7, 1), ended
    check_kept(operator, held)
    return f"restart {took:.1f} s, stop {stopped:.1f} s; an end meanwhile is told with its code 7"


def check_kept(operator: Operator, held: str) -> None:
    """The long job has the container that it had, of its first attempt."""
    job = operator.await_job("long", "running")
    assert operator.container("long") == held and len(job["attempts"]) == 1, job


def check_killed(operator: Operator) -> str:
    """SIGKILL for every daemon: each is started again, and jobs do not notice."""
    held = operator.container("long")
    took = {}
    for unit in UNITS:
        took[unit] = round(operator.back(unit, operator.signal(unit, "KILL")), 1)
    operator.status("gpuyard-coordinator", "leads yard", within_s=30)
    check_kept(operator, held)
    return f"seconds until there again: {took}"


def check_hung(operator: Operator) -> str:
    """A daemon that hangs is ended by the watchdog and started again."""
    held = operator.container("long")
    began = time.monotonic()
    stopped = {
        unit: operator.signal(unit, "STOP") for unit in ("gpuyard-coordinator", "gpuyard-agent")
    }
    for unit, pid in stopped.items():
        operator.back(unit, pid, within_s=60)
        told = operator.machine.sh(f"journalctl -u {unit} -g 'Watchdog timeout' -n 1 -o cat")
        assert "Watchdog timeout (limit 30s)" in told, told
    took = time.monotonic() - began
    check_kept(operator, held)
    return f"both there again after {took:.0f} s, the limit being 30 s"


def check_bus_away(operator: Operator) -> str:
    """Without a bus the agent starts, and the coordinator is tried again without an end."""
    machine, held = operator.machine, operator.container("long")
    machine.sh("systemctl stop gpuyard-nats")
    agent_s = operator.timed("systemctl restart gpuyard-agent")
    machine.tried("systemctl restart gpuyard-coordinator")
    began = time.monotonic()
    (first,) = machine.show("gpuyard-coordinator", "NRestarts")
    eventually(
        lambda: int(machine.show("gpuyard-coordinator", "NRestarts")[0]) >= int(first) + 6,
        within_s=60,
        what="the sixth try",
    )
    each_s = (time.monotonic() - began) / 6
    (line, *_) = machine.journal("gpuyard-coordinator", "-n 1", "-p err")
    machine.sh("systemctl start gpuyard-nats")
    operator.status("gpuyard-coordinator", "leads yard", within_s=30)
    check_kept(operator, held)
    return f"agent in {agent_s:.1f} s; a try each {each_s:.1f} s: {line['MESSAGE']}"


def check_bad_settings(operator: Operator) -> str:
    """A setting that cannot be meant: one line, and no further try until a person starts it."""
    told = []
    for unit, file in (
        ("gpuyard-agent", "agent.toml"),
        ("gpuyard-coordinator", "coordinator.toml"),
    ):
        good = operator.machine.sh(f"cat /etc/gpuyard/{file}")
        operator.set(file, "colour", '"red"')
        code, _ = operator.machine.tried(f"systemctl restart {unit}")
        time.sleep(3)  # longer than the pause before a next try
        state = operator.machine.show(unit, "ActiveState", "ExecMainStatus", "NRestarts")
        assert code and state == ["failed", "2", "0"], (code, state)
        id = operator.machine.show(unit, "InvocationID")[0]
        (line,) = operator.machine.journal(unit, f"-p err _SYSTEMD_INVOCATION_ID={id}")
        told.append(line["MESSAGE"])
        operator.machine.write(f"/etc/gpuyard/{file}", good)
        operator.machine.sh(f"systemctl start {unit}")
    operator.status("gpuyard-coordinator", "leads yard", within_s=30)
    return f"failed with 2 and stays so: {' | '.join(told)}"


def check_stop_with_jobs(operator: Operator) -> str:
    """`stop_jobs_on_exit`: systemd waits for the graces, although its own limit is shorter."""
    operator.drop_in("gpuyard-agent", "TimeoutStopSec=3")
    operator.set("agent.toml", "stop_jobs_on_exit", "true")
    operator.machine.sh("systemctl restart gpuyard-agent")
    operator.await_job("long", "running")
    took = operator.timed("systemctl stop gpuyard-agent")
    result = operator.machine.show("gpuyard-agent", "Result")
    assert result == ["success"] and took > 5, (result, took)
    assert not operator.machine.sh("docker ps -q")
    ended = operator.await_job("long", "failed", "cancelled")
    operator.set("agent.toml", "stop_jobs_on_exit", "false")
    operator.drop_in("gpuyard-agent")
    operator.machine.sh("systemctl start gpuyard-agent")
    return f"stopped in {took:.1f} s with a limit of 3 s; the job: {ended['reason']}"


def check_fence(operator: Operator) -> str:
    """The keeper ends a fenced job under its own limits, with agent, bus and engine away."""
    machine = operator.machine
    operator.submit("fenced", STUBBORN, on_partition="6s")
    operator.await_job("fenced", "running")
    held = operator.container("fenced")
    (pid,) = machine.sh(f"docker inspect -f '{{{{.State.Pid}}}}' {held}").split()
    fences = "grep -q fenced /var/lib/gpuyard-agent/keeper/fences.json"
    eventually(lambda: machine.tried(fences)[0] == 0, within_s=10, what="the fence on the disk")
    machine.sh("systemctl stop gpuyard-agent gpuyard-nats; kill -STOP $(pidof dockerd)")
    began = time.monotonic()
    eventually(lambda: machine.tried(f"kill -0 {pid}")[0], within_s=40, what="the job ended")
    took = time.monotonic() - began
    machine.sh("kill -CONT $(pidof dockerd); systemctl start gpuyard-nats gpuyard-agent")
    ended = operator.await_job("fenced", "failed", within_s=60)
    told = ended["attempts"][0]
    assert told["reason"] == "node_lost" and "ended by the keeper" in told["message"], told
    (line, *_) = machine.journal("gpuyard-keeper", "-p warning", "-n 1")
    return f"ended after {took:.0f} s; {line['MESSAGE']}; the job: {told['message']}"


def check_processes(operator: Operator) -> str:
    """Jobs without a container outlive their agent too, with their files in /tmp."""
    machine = operator.machine
    operator.set("agent.toml", "runtime", '"process"')
    machine.sh("rm -f /tmp/go; systemctl restart gpuyard-agent")
    operator.status("gpuyard-agent", "on the bus at")
    script = f"cat /proc/self/oom_score_adj; echo kept > /tmp/mine; ({UNTIL_TOLD}); cat /tmp/mine"
    operator.submit("bare", f"{script}; exit 7")
    operator.await_job("bare", "running")
    eventually(lambda: machine.tried("test -e /tmp/mine")[0] == 0, within_s=10, what="its file")
    machine.sh("systemctl restart gpuyard-agent")
    operator.back("gpuyard-agent", operator.signal("gpuyard-agent", "KILL"))
    machine.sh("touch /tmp/go")
    ended = operator.await_job("bare", "failed")
    assert (ended["exit_code"], len(ended["attempts"])) == (7, 1), ended
    lines = operator.cli("logs bare").split()
    assert lines == ["0", "kept"], lines
    operator.set("agent.toml", "runtime", '"docker"')
    machine.sh("systemctl restart gpuyard-agent")
    return "a restart and a SIGKILL of the agent later it ends with its code 7, /tmp as it left it"


def check_nats_health(operator: Operator) -> str:
    """The look at the server's health may restart the server, under its own limits."""
    machine = operator.machine
    machine.write("/root/sick.py", SICK_SERVER)
    machine.sh("systemd-run --quiet --unit sick python3 /root/sick.py")
    look = "/opt/gpuyard/share/gpuyard/systemd/nats_health.py --url http://127.0.0.1:8333"
    operator.drop_in("gpuyard-nats-health", "ExecStart=", f"ExecStart=/usr/bin/env python3 {look}")
    before = operator.pid("gpuyard-nats")
    machine.sh("until ss -ltn | grep -q 8333; do sleep 0.1; done")
    machine.sh("systemctl start gpuyard-nats-health")
    after = operator.pid("gpuyard-nats")
    assert after not in (0, before), (before, after)
    operator.drop_in("gpuyard-nats-health")
    machine.sh("systemctl stop sick; systemctl start gpuyard-nats-health")
    (line, *_) = machine.journal("gpuyard-nats-health", "-n 1", "-p warning")
    return line["MESSAGE"]


def check_reboot(operator: Operator) -> str:
    """After a reboot all is there again by itself, and the job that ran has a truthful end."""
    operator.submit("rebooted", STUBBORN)
    operator.await_job("rebooted", "running")
    began = time.monotonic()
    operator.machine.reboot()
    took = time.monotonic() - began
    for unit in UNITS:
        assert operator.machine.show(unit, "ActiveState") == ["active"], unit
    order = operator.machine.sh(
        "systemctl show -p ActiveEnterTimestampMonotonic --value docker gpuyard-agent"
    ).split()
    assert int(order[0]) < int(order[1]), f"docker and agent: {order}"
    ended = operator.await_job("rebooted", "failed", within_s=60)
    (told,) = ended["attempts"]
    assert told["reason"] == "node_lost" and "rebooted" in told["message"], told
    failed = operator.machine.sh("systemctl list-units --failed --plain --no-legend 'gpuyard*'")
    assert not failed, failed
    return f"down and up in {took:.0f} s; the job: {told['reason']}, {told['message']}"


def check_removal(operator: Operator) -> str:
    """The page's commands leave nothing of the yard behind."""
    drain, gpu_host, _, bus_host = blocks("Take a host out")
    operator.cli(drain.strip().removeprefix("gpuyard "))
    # The other half of this machine is the host of the bus, which still needs these.
    shared = "rm -r /opt/gpuyard /etc/gpuyard "
    assert shared in gpu_host
    operator.machine.sh("set -e\n" + gpu_host.replace(shared, "rm -r "))
    operator.machine.sh("set -e\n" + bus_host)
    left = operator.machine.sh(
        "ls -d /etc/systemd/system/*gpuyard* /etc/systemd/system/*/*gpuyard* /opt/gpuyard "
        "/etc/gpuyard /var/lib/gpuyard* /usr/local/bin/gpuyard 2>/dev/null; "
        "getent passwd gpuyard; getent group gpuyard; pgrep -af gpuyard; docker ps -aq; true"
    )
    assert not left, left
    return "no unit, file, account, process or container is left"


CHECKS: Final = (
    check_bus_host,
    check_gpu_host,
    check_analysis,
    check_folders,
    check_levels,
    check_restart,
    check_killed,
    check_hung,
    check_bus_away,
    check_bad_settings,
    check_stop_with_jobs,
    check_fence,
    check_processes,
    check_nats_health,
    check_reboot,
    check_removal,
)


def prepare(machine: Machine) -> None:
    """What a host has before the page begins: the wheels and the image of the jobs."""
    version = machine.sh("python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'")
    folder = wheels(version)
    try:
        machine.put(folder, "/root/dist")
    finally:
        shutil.rmtree(folder)
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        Path(file.name).write_bytes(busybox_tar())
        load_image(machine, Path(file.name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mirror", help="where Debian's packages are (default: apt's mirror)")
    arguments = parser.parse_args()
    check_tools()
    with booted(arguments.mirror) as machine:
        prepare(machine)
        print(machine.sh("systemctl --version | head -1"), flush=True)
        operator = Operator(machine)
        results = [holds(check, operator) for check in CHECKS]
        if not all(results):
            print(machine.tried("journalctl --no-pager -n 200")[1], file=sys.stderr)
    return close(results)


if __name__ == "__main__":
    sys.exit(main())
