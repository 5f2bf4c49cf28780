"""Whose credentials a pull carries: those of the docker command's own file and helpers."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpuyard_agent.docker_runtime import credentials
from gpuyard_agent.docker_runtime.credentials import Credentials

_HUB = "https://index.docker.io/v1/"
_SECRET = base64.b64encode("me:pässword:1".encode()).decode()
_ME = {"username": "me", "password": "pässword:1"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the docker command's file, on the PATH too."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def _write(home: Path, config: object) -> None:
    (home / "config.json").write_text(json.dumps(config))


def _add_helper(home: Path, name: str, script: str) -> None:
    file = home / f"docker-credential-{name}"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


async def _auth(image: str, reader: Credentials | None = None) -> dict[str, Any] | None:
    """What the header says, as the engine reads it: in any case, without what is not set."""
    header = await (reader or Credentials()).header_for(image)
    if header is None:
        return None
    fields = json.loads(base64.urlsafe_b64decode(header))
    return {key.lower(): value for key, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    ("key", "image", "address"),
    [
        ("r.example:5000", "r.example:5000/a/b@sha256:0", "r.example:5000"),
        ("https://r.example/v2/", "r.example/a", "https://r.example/v2/"),
        (_HUB, "busybox", _HUB),
        (_HUB, "docker.io/team/image:1", _HUB),
        ("localhost", "localhost/a", "localhost"),
    ],
)
async def test_a_login_in_the_file_is_found(home: Path, key: str, image: str, address: str) -> None:
    _write(home, {"auths": {"other.example": {"auth": "eDp5"}, key: {"auth": _SECRET}}})

    assert await _auth(image) == _ME | {"serveraddress": address}
    assert await _auth("third.example/a") is None


async def test_an_identity_token_stands_for_user_and_password(home: Path) -> None:
    _write(home, {"auths": {"r.example": {"auth": _SECRET, "identitytoken": "t"}}})

    assert await _auth("r.example/a") == {"identitytoken": "t"}


async def test_a_helper_is_asked_for_its_registry_before_the_store_of_all(home: Path) -> None:
    answer = 'read key; echo "{\\"Username\\": \\"%s\\", \\"Secret\\": \\"of $key\\"}"'
    _add_helper(home, "one", answer % "<token>")
    _add_helper(home, "all", answer % "me")
    _write(home, {"credsStore": "all", "credHelpers": {"r.example": "one"}})

    assert await _auth("r.example/a") == {
        "identitytoken": "of r.example",
        "serveraddress": "r.example",
    }
    assert await _auth("busybox") == {
        "username": "me",
        "password": f"of {_HUB}",
        "serveraddress": _HUB,
    }


async def test_a_helper_that_has_none_leaves_what_the_file_has(home: Path) -> None:
    _add_helper(home, "all", "echo credentials not found in native keychain; exit 1")
    _write(home, {"credsStore": "all", "auths": {"r.example": {"auth": _SECRET}}})

    assert await _auth("r.example/a") == _ME | {"serveraddress": "r.example"}
    assert await _auth("busybox") is None


@pytest.mark.filterwarnings("ignore:docker-credential-all not installed:UserWarning")
@pytest.mark.parametrize("script", ["echo no JSON", "echo []", "echo {}", "exit 3", None])
async def test_a_helper_that_fails_is_no_credentials(home: Path, script: str | None) -> None:
    if script is not None:
        _add_helper(home, "all", script)
    _write(home, {"credsStore": "all"})

    assert await _auth("r.example/a") is None


async def test_a_helper_that_hangs_is_not_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Credentials()
    monkeypatch.setattr(credentials, "_READ_S", 0.2)
    go_on = home / "go-on"
    os.mkfifo(go_on)
    _add_helper(home, "all", f"read line < {go_on}")
    _write(home, {"credsStore": "all"})

    assert await _auth("r.example/a", reader) is None
    go_on.write_text("now\n")
    _join(reader)


async def test_helpers_that_hang_do_not_pile_up(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Credentials()
    monkeypatch.setattr(credentials, "_READ_S", 0.2)
    monkeypatch.setattr(credentials, "_MOST_STUCK", 1)
    go_on = home / "go-on"
    os.mkfifo(go_on)
    _add_helper(home, "all", f"echo x >> {home}/begun; read line < {go_on}")
    auths = {"r.example": {"auth": _SECRET}}
    _write(home, {"credsStore": "all", "auths": auths})
    for _ in range(3):
        assert await _auth("r.example/a", reader) is None
    assert (home / "begun").read_text() == "x\n"

    go_on.write_text("now\n")
    _join(reader)
    _write(home, {"auths": auths})
    assert await _auth("r.example/a", reader) == _ME | {"serveraddress": "r.example"}


def _join(reader: Credentials) -> None:
    for thread in list(reader._stuck):
        thread.join(10)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"auths": 1, "credHelpers": []}',
        '{"auths": {"r.example": 3}}',
        '{"auths": {"r.example": {"auth": "%"}}}',
        '{"auths": {"r.example": {}}}',
        b"\xff",
    ],
)
async def test_a_file_out_of_form_is_no_credentials(home: Path, text: str | bytes) -> None:
    (home / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())

    assert await _auth("r.example/a") is None


async def test_no_file_is_no_credentials(home: Path) -> None:
    assert await _auth("r.example/a") is None
