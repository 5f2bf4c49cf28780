"""Nodes are cut off, their agent killed or stopped, for longer than a fence; an engine is stopped.

Each of them has a job that is to be kept, one that is to end, and one that is to move. On a node
that the yard does not hear of, the two last are ended by the node's own keeper, and the one that
moves begins again elsewhere once that is proven by time; a stopped engine takes nothing away from
what runs. Never do two attempts of a job run at once, and `gpuyard job` tells what happened.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.busybox import BUSYBOX
from tests.support.engine import PrivateEngine
from tests.support.nats_server import NatsServer
from tests.support.processes import is_alive
from tests.support.running_yard import Daemon, RunningYard, eventually
from tests.system.chaos.relay import Relays

FENCE_S = 6
SETTINGS = "suspect_s = 3.0\nlost_s = 5.0\n"
SILENT = ("cut", "killed", "stopped")
"""Nodes by what happens to them; `engine` is the fourth, and jobs move to `spare`."""
KINDS = ("keeps", "ends", "moves")


@dataclass(slots=True)
class Figures:
    silent_s: float
    """From the faults until every job that moves ran again."""
    ended_s: float
    """From the faults until keepers had ended what they had to."""
    attempts: int


def yard_with_short_leases(
    server: NatsServer, directory: Path, module: str = "gpuyard_coordinator"
) -> RunningYard:
    """A yard whose coordinator, run as `module`, soon gives up a node that is silent."""
    yard = RunningYard(server, directory)
    settings = directory / "coordinator.toml"
    settings.write_text(SETTINGS)
    flags = ["--url", server.url, "--dir", str(directory / "c"), "--config", str(settings)]
    yard.coordinator = Daemon(module, directory / "coordinator.log", flags)
    yard.coordinator.start()
    return yard


def node_away(yard: RunningYard, engine: PrivateEngine, margin_s: float) -> Figures:
    """The drill; `yard` is of `yard_with_short_leases` and waits for `margin_s` beyond a fence."""
    hold = yard.directory / "hold"
    hold.touch()
    relays = Relays()
    try:
        return _Drill(yard, engine, relays, margin_s).run()
    finally:
        hold.unlink()  # ends whatever runs as a plain process
        engine.thaw()
        for agent in yard.agents.values():
            agent.kill()
        relays.close()


class _Drill:
    def __init__(
        self, yard: RunningYard, engine: PrivateEngine, relays: Relays, margin_s: float
    ) -> None:
        self.yard = yard
        self.folder = yard.directory
        self.engine = engine
        self.link = relays.link([yard.server.port])
        self.margin_s = margin_s
        (self.folder / "agent.toml").write_text("beat_s = 0.5\n")

    def run(self) -> Figures:
        self._agent("cut", url=f"nats://127.0.0.1:{self.link.ports[0]}")
        self._agent("killed")
        self._agent("stopped")
        self._agent("engine", runtime="docker", docker_host=self.engine.url)
        self.client = client = self.yard.ready(4)
        for node in (*SILENT, "engine"):
            for kind in KINDS:
                client.submit(self._job(node, kind))
        self._until(self._is_safe, (*SILENT, "engine"), what="all jobs run, and keepers know it")
        self._agent("spare", labels=SILENT)
        self.yard.ready(5)

        began = time.monotonic()
        self.link.cut()
        self.yard.agents["killed"].kill()
        self.yard.agents["stopped"].signal(signal.SIGSTOP)
        self.engine.freeze()
        self._until(self._has_ended, SILENT, what="keepers end what is fenced")
        ended_s = time.monotonic() - began
        self._until(self._waits, SILENT[:1], what="it is told what the jobs wait for")
        self._until(self._has_moved, SILENT, what="jobs move", within_s=self.margin_s + 30)
        silent_s = time.monotonic() - began
        for node in SILENT:
            self._check_silent(node)
        self._check_engine()

        self.link.mend()
        self.yard.agents["stopped"].signal(signal.SIGCONT)
        self.engine.thaw()
        self._until(self._is_ready, ("cut", "stopped", "engine"), what="it is back", within_s=30)
        return Figures(silent_s, ended_s, self._check_all_once())

    def _agent(self, name: str, *, labels: tuple[str, ...] = (), **options: str) -> None:
        fleet = self.folder / f"{name}.yaml"
        shown = ", ".join(f"{label}: 'yes'" for label in labels or (name,))
        gpus = "[{name: TEST, count: 8, memory_mib: 1024}]"
        fleet.write_text(f"nodes: [{{name: {name}, labels: {{{shown}}}, gpus: {gpus}}}]\n")
        config = str(self.folder / "agent.toml")
        self.yard.agent(name, simulate=str(fleet), config=config, **options)

    def _job(self, node: str, kind: str) -> dict[str, Any]:
        """Notes its process; another that starts while the first lives is noted, too."""
        id, file = f"{node}-{kind}", self.folder / f"{node}-{kind}"
        script = (
            f"for pid in $(cat {file}.pids); do kill -0 $pid && echo $pid >> {file}.two; done; "
            f"echo $$ >> {file}.pids; while [ -e {self.folder}/hold ]; do sleep 0.1; done"
        )
        body: dict[str, Any] = {"id": id, "where": [f"{node}=yes"], "stop_grace": "1s"}
        body |= {"image": "none", "command": ["sh", "-c", script]}
        if node == "engine":
            body |= {"image": BUSYBOX, "command": ["sleep", "600"], "network": "none"}
        if kind == "moves":
            body["retries"] = {"max": 1, "when": ["platform"], "backoff": "1s"}
        return body | {"on_partition": "keep" if kind == "keeps" else {"stop_after": f"{FENCE_S}s"}}

    def _until(
        self,
        check: Callable[[str], bool],
        nodes: tuple[str, ...],
        *,
        what: str,
        within_s: float = 20,
    ) -> None:
        for node in nodes:
            eventually(partial(check, node), what=f"{node}: {what}", within_s=within_s)

    def _attempts(self, id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.job(id).view["attempts"]
        return found

    def _pids(self, id: str) -> list[int]:
        file = self.folder / f"{id}.pids"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def _is_ready(self, node: str) -> bool:
        return bool(self.client.node(node)["state"] == "ready")

    def _is_safe(self, node: str) -> bool:
        last = {kind: self._attempts(f"{node}-{kind}")[-1:] for kind in KINDS}
        return all(
            attempts and attempts[0]["started_at"] and (kind == "keeps" or attempts[0]["fenced"])
            for kind, attempts in last.items()
        )

    def _has_ended(self, node: str) -> bool:
        return not any(is_alive(self._pids(f"{node}-{kind}")[0]) for kind in ("ends", "moves"))

    def _waits(self, node: str) -> bool:
        told = self.yard.cli("job", f"{node}-moves").stdout
        return f"node {node} is silent" in told and f"its fence of {FENCE_S}s is over" in told

    def _has_moved(self, node: str) -> bool:
        return len(self._pids(f"{node}-moves")) == 2

    def _check_silent(self, node: str) -> None:
        """What is told of a node's jobs while it is silent."""
        proof = (
            f"its fence of {FENCE_S}s is over and node {node} stayed silent; "
            "retry 1 of 1 after node_lost"
        )
        first, second = self._attempts(f"{node}-moves")
        assert (first["node"], first["reason"]) == (node, "node_lost")
        assert first["next_allowed_because"] == proof
        assert second["node"] == "spare" and not second["ended_at"]
        told = self.yard.cli("job", f"{node}-moves").stdout
        assert f"next allowed: {proof}" in told and "2  spare  running" in told
        told = self.yard.cli("job", f"{node}-ends").stdout
        assert "node_lost" in told and f"longer than the fence of {FENCE_S}s" in told
        assert self.client.job(f"{node}-ends").state == "failed"
        (pid,) = self._pids(f"{node}-keeps")
        assert is_alive(pid)
        told = self.yard.cli("job", f"{node}-keeps").stdout
        assert f"or 'gpuyard forget {node}'" in told and "its fence" not in told

    def _check_engine(self) -> None:
        """An engine that hangs is no reason to end anything."""
        assert self.client.node("engine")["state"] == "unready"
        for kind in KINDS:
            job = self.client.job(f"engine-{kind}")
            assert (job.state, len(job.view["attempts"])) == ("running", 1)
        told = self.yard.cli("job", "engine-moves").stdout
        assert "engine (unready)" in told and "1  engine  running" in told

    def _check_all_once(self) -> int:
        """Once the nodes are back: what is over stays over, what was kept is kept."""
        assert not list(self.folder.glob("*.two")), "two attempts at once"
        for node in (*SILENT, "engine"):
            assert self.client.job(f"{node}-keeps").state == "running"
            moved = {} if node == "engine" else {"moves": 2}
            for kind, count in (dict.fromkeys(KINDS, 1) | moved).items():
                assert len(self._attempts(f"{node}-{kind}")) == count
                if node != "engine":
                    assert len(self._pids(f"{node}-{kind}")) == count
        jobs = self.client.jobs(all=True)
        return sum(len(self._attempts(job.id)) for job in jobs)
