"""What a running coordinator records is replayed by the command line to the same decisions."""

import stat

from tests.support.running_yard import RunningYard


def test_a_recorded_yard_replays_equal_and_is_played_under_another_policy(
    yard: RunningYard,
) -> None:
    """Through a change of leaders, with jobs that wait, and a tenant's limit."""
    yard.agent(runtime="simulated", simulate="2")
    client = yard.ready(2)
    client.apply({"tenant": "default", "limits": {"gpus": 12}})
    for number in range(30):
        spec = {"image": "busybox", "gpus": 1 + number % 4, "labels": {"sim.duration": "0.5s"}}
        client.submit({"id": f"j{number}", **spec})
        if number == 15:
            yard.coordinator.kill()
            yard.coordinator.start()
    for number in range(30):
        assert client.wait(f"j{number}", timeout_s=60).state == "succeeded"
    yard.coordinator.stop()
    folder = yard.directory / "coordinator" / "record"

    replayed = yard.json("simulate", str(folder))
    assert replayed["difference"] is None and replayed["decisions"] >= 10
    assert yard.cli("simulate", str(folder)).stdout.startswith(
        f"{replayed['decisions']} decisions, all equal"
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}

    plot = yard.directory / "use.svg"
    played = yard.json(
        *("simulate", str(folder), "--policy", "ours,spread", "--quota", "default=4"),
        *("--plot", str(plot)),
    )
    assert played["gpus"] == 16 and plot.read_text().startswith("<svg")
    for row in played["policies"]:
        assert row["never_started"] == 0 and row["wait_max_s"] > 0
