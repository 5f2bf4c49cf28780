"""A client that is not ours: nothing but NATS and JSON."""

import asyncio
import json
import secrets

import nats
import pytest

from gpuyard import Client, Job, codec
from tests.support.running_yard import RunningYard, eventually


def publish(url: str, subject: str, *bodies: bytes, headers: dict[str, str] | None = None) -> None:
    """What a script of ten lines does; every publication is acknowledged by the stream."""

    async def run() -> None:
        async with await nats.connect(url) as connection:
            for body in bodies:
                await connection.jetstream().publish(subject, body, headers=headers)

    asyncio.run(run())


def spec(**fields: object) -> bytes:
    return json.dumps({"image": "none", "command": ["true"], **fields}).encode()


@pytest.fixture
def client(yard: RunningYard) -> Client:
    yard.agent(simulate="1")
    return yard.ready()


def test_json_from_a_plain_client_runs_a_job(yard: RunningYard, client: Client) -> None:
    body = spec(id="plain", command=["sh", "-c", "echo $GPUYARD_GPU_UUIDS"], gpus=1)
    publish(yard.server.url, "gpuyard.submit.default", body)
    eventually(lambda: known(client, "plain"))
    job = client.wait("plain", timeout_s=30)
    assert (job.state, job.exit_code) == ("succeeded", 0)
    lines = [line.text for line in client.logs("plain")]
    assert lines == [lines[0]] and lines[0].startswith("GPU-")


def known(client: Client, id: str) -> Job | None:
    return next((job for job in client.jobs(all=True) if job.id == id), None)


def test_one_id_published_twice_runs_once(yard: RunningYard, client: Client) -> None:
    marker = yard.directory / "ran"
    body = spec(id="twice", command=["sh", "-c", f"echo x >> {marker}"])
    publish(yard.server.url, "gpuyard.submit.default", body, body)
    eventually(lambda: known(client, "twice"))
    client.wait("twice", timeout_s=30)
    publish(yard.server.url, "gpuyard.submit.default", body)
    client.run({"id": "after", "image": "none", "command": ["true"]})
    assert marker.read_text() == "x\n"
    assert len(client.job("twice").view["attempts"]) == 1


def test_two_tenants_with_one_id_both_run(yard: RunningYard, client: Client) -> None:
    other = yard.client(tenant="team-b")
    for tenant in ("default", "team-b"):
        publish(yard.server.url, f"gpuyard.submit.{tenant}", spec(id="same"))
    for reader in (client, other):
        eventually(lambda reader=reader: known(reader, "same"))  # type: ignore[misc]
        assert reader.wait("same", timeout_s=30).state == "succeeded"


def test_same_id_with_another_spec_is_refused_and_the_first_runs(
    yard: RunningYard, client: Client
) -> None:
    first, second = spec(id="c"), spec(id="c", command=["false"])
    publish(yard.server.url, "gpuyard.submit.default", first, second)
    eventually(lambda: known(client, "c"))
    job = client.wait("c", timeout_s=30)
    assert job.state == "succeeded"
    kinds = [event["kind"] for event in client.events("c", follow=False)]
    assert "rejected" in kinds and kinds.count("accepted") == 1


def test_garbage_never_stops_intake(yard: RunningYard, client: Client) -> None:
    garbage = [
        b"",
        b"\x00\xff\xfe",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"\xdd\xff\xff\xff\xff",
        json.dumps({"image": "x", "comand": ["y"]}).encode(),
        json.dumps({"cancel": 7}).encode(),
        b'{"image": "x", "env": {"A": "' + b"y" * 70_000 + b'"}}',
        secrets.token_bytes(2000),
        codec.encode({"v": 99, "image": "x"}),
    ]
    publish(yard.server.url, "gpuyard.submit.default", *garbage)
    publish(yard.server.url, "gpuyard.submit.Not_A_Tenant", spec())
    publish(yard.server.url, "gpuyard.submit.default", spec(id="last"))
    eventually(lambda: known(client, "last"), what="the job after the garbage")
    assert client.wait("last", timeout_s=30).state == "succeeded"
    refused = [job for job in client.jobs(all=True) if job.reason == "invalid"]
    assert len(refused) == len(garbage)
    texts = "\n".join(str(job.message) for job in refused)
    assert "did you mean command?" in texts
    assert "70" in texts and "65536" in texts


def test_a_message_id_becomes_the_job_id(yard: RunningYard, client: Client) -> None:
    headers = {"Nats-Msg-Id": "default/by-msg-id"}
    publish(yard.server.url, "gpuyard.submit.default", spec(), headers=headers)
    eventually(lambda: known(client, "by-msg-id"))
    assert client.wait("by-msg-id", timeout_s=30).state == "succeeded"
