"""Forty columns: every screen still shows what it is about, and tables do not wrap."""

import pytest

from tests.shared.cli.command import OnTerminal
from tests.shared.cli.test_operate import fleet
from tests.shared.cli.test_tenants import TEAM
from tests.shared.client.fake_yard import FakeJob, FakeYard
from tests.support.nats_server import NatsServer


@pytest.mark.parametrize(
    ("line", "told", "is_table"),
    [
        (("jobs",), ("train-re", "running"), True),
        (("nodes",), ("n1", "ready"), True),
        (("tenants",), ("team-a", "5.5/4"), True),
        (("config",), ("tenant", "default"), True),
        (("job", "train-resnet"), ("State", "running"), False),
        (("node", "n1"), ("Driver", "pid 4242 of bob"), False),
        (("tenant", "team-a"), ("gpus", "5.5"), False),
        (("why", "waits"), ("0/3 nodes fit", "to start it:"), False),
        (("status",), ("24: 10 free", "4 waiting"), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
async def test_a_screen(
    line: tuple[str, ...], told: tuple[str, ...], is_table: bool, nats_server: NatsServer
) -> None:
    async with FakeYard(nats_server.url) as yard:
        job = FakeJob({"id": "train-resnet", "image": "busybox", "name": "x" * 60}, "t", "alice")
        yard.jobs["train-resnet"] = job
        await yard.assign(job)
        await yard.running(job)
        yard.nodes = fleet(jobs=("train-resnet",))
        yard.tenants = {"team-a": TEAM}
        async with OnTerminal(nats_server.url, *line, columns=40, rows=24) as screen:
            assert await screen.end() == 0
    for text in told:
        assert text in screen.shown.replace("\r\n", "\n")
    if is_table:
        assert max(map(len, screen.shown.split("\r\n"))) <= 40
