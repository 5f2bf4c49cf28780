"""Questions on a terminal: one Ctrl-C ends each at once, and nothing is done."""

import pytest

from tests.shared.cli.command import OnTerminal, gpuyard
from tests.shared.cli.test_operate import fleet
from tests.shared.client.fake_operations import tenant_view
from tests.shared.client.fake_yard import FakeYard, runs_on
from tests.support.nats_server import NatsServer


@pytest.mark.parametrize(
    ("line", "question"),
    [
        (["cancel", "--all"], "Cancel 1 job? [y/N]: "),
        (["cancel", "--state", "running"], "Cancel 1 job? [y/N]: "),
        (["forget", "n1"], "Forget node n1? It holds no job. [y/N]: "),
        (["delete-tenant", "team-a"], "Delete tenant team-a? [y/N]: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_ctrl_c_ends_a_question(
    line: list[str], question: str, nats_server: NatsServer
) -> None:
    async with FakeYard(nats_server.url, runs_on) as yard:
        yard.nodes = fleet(state="lost")
        yard.tenants = {"team-a": tenant_view("team-a")}
        await gpuyard(nats_server.url, "submit", "--id", "job-a", "busybox")
        async with OnTerminal(nats_server.url, *line) as asked:
            await asked.see(question)
            asked.press(b"\x03")
            assert await asked.end() == 130
        assert asked.shown.endswith("^C\r\n") and "Traceback" not in asked.shown
        done = {operation for operation, _ in yard.calls}
        assert not done & {"cancel", "forget", "tenant-delete"}
