"""Jobs that wait by their own wish, and many from one, through the real command line."""

from tests.support.running_yard import RunningYard, eventually

COUNT = 'echo "task $GPUYARD_ARRAY_TASK by $GPUYARD_DEADLINE"; exit $((GPUYARD_ARRAY_TASK % 2))'


def test_an_array_waits_runs_its_tasks_and_wakes_what_comes_after(yard: RunningYard) -> None:
    yard.agent()
    client = yard.ready()
    deadline = "2099-01-31T18:00:00Z"
    flags = ["--hold", "--array", "0-3%2", "--deadline", deadline, "--id", "sweep"]
    done = yard.cli("submit", *flags, "busybox", "sh", "-c", COUNT)
    assert (done.returncode, done.stdout) == (0, "sweep\n"), done.stderr
    after = ["submit", "--after", "sweep:ended", "--id", "report", "busybox", "true"]
    assert yard.cli(*after).returncode == 0
    only_if = ["submit", "--after", "sweep", "--id", "publish", "busybox", "true"]
    assert yard.cli(*only_if).returncode == 0

    rows = {line.split()[0]: line for line in yard.cli("jobs").stdout.splitlines()}
    assert "held by" in rows["sweep_[0-3]"]
    assert "it waits for job sweep to end" in yard.cli("why", "report").stdout
    assert yard.cli("hold", "nobody").returncode == 1

    assert yard.cli("release", "sweep").stdout == "sweep\n"
    waited = yard.cli("wait", "sweep")
    assert waited.returncode == 1, "the worst of its tasks"
    told = yard.cli("job", "sweep").stdout
    assert "2 failed, 2 succeeded of 4 tasks" in told
    assert "4 tasks, at most 2 at once: 2 succeeded, 2 failed" in told
    assert yard.cli("logs", "sweep_2").stdout == "task 2 by 2099-01-31T18:00:00.000Z\n"
    assert "name a task of it" in yard.cli("logs", "sweep").stderr
    assert yard.json("job", "sweep")["array"]["states"] == {"succeeded": 2, "failed": 2}
    assert yard.cli("wait", "report").returncode == 0
    assert client.job("publish").reason == "dependency_failed"

    assert (
        "at most 100000 are allowed" in yard.cli("submit", "--array", "0-999999", "busybox").stderr
    )
    refused = yard.cli("submit", "--after", "nobody", "busybox", "true")
    assert refused.returncode == 1 and "no job nobody in tenant default" in refused.stderr


def test_dependants_and_arrays_go_on_under_the_next_leader(yard: RunningYard) -> None:
    yard.agent()
    client = yard.ready()
    client.submit({"id": "first", "image": "busybox", "command": ["sleep", "1"]})
    client.submit({"id": "second", "image": "b", "command": ["true"], "after": [{"job": "first"}]})
    client.submit({"id": "many", "image": "b", "command": ["true"], "array": "0-49%4"})
    eventually(lambda: client.job("first").state == "running", what="the first runs")
    yard.coordinator.kill()
    yard.coordinator.start()
    client = yard.ready()
    assert client.wait("second", timeout_s=60).is_succeeded
    assert client.wait("many", timeout_s=60).is_succeeded
    ended = client.job("many").view["array"]["states"]
    assert ended == {"succeeded": 50}
