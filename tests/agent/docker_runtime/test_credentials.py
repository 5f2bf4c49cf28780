"""Whose credentials a pull carries: those of the docker command's own file and helpers."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard_agent.docker_runtime.credentials import registry_auth, registry_of

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


async def _auth(image: str) -> Any:
    header = await registry_auth(image)
    return None if header is None else json.loads(base64.urlsafe_b64decode(header))


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("busybox", "docker.io"),
        ("team/image:1", "docker.io"),
        ("docker.io/team/image", "docker.io"),
        ("r.example/a", "r.example"),
        ("r.example:5000/a/b@sha256:0", "r.example:5000"),
        ("localhost/a", "localhost"),
    ],
)
def test_the_registry_of_an_image(image: str, registry: str) -> None:
    assert registry_of(image) == registry


@pytest.mark.parametrize(
    ("key", "image", "address"),
    [
        ("r.example:5000", "r.example:5000/a", "r.example:5000"),
        ("https://r.example/v2/", "r.example/a", "r.example"),
        (_HUB, "busybox", _HUB),
        ("docker.io", "team/image", _HUB),
    ],
)
async def test_a_login_in_the_file_is_found(home: Path, key: str, image: str, address: str) -> None:
    _write(home, {"auths": {"other.example": {"auth": "eDp5"}, key: {"auth": _SECRET}}})

    assert await _auth(image) == _ME | {"serveraddress": address}
    assert await _auth("third.example/a") is None


async def test_an_identity_token_stands_for_user_and_password(home: Path) -> None:
    _write(home, {"auths": {"r.example": {"auth": _SECRET, "identitytoken": "t"}}})

    assert await _auth("r.example/a") == {"identitytoken": "t", "serveraddress": "r.example"}


async def test_a_helper_is_asked_for_its_registry_before_the_store_of_all(home: Path) -> None:
    answer = 'read key; echo "{\\"Username\\": \\"%s\\", \\"Secret\\": \\"of $key\\"}"'
    _add_helper(home, "one", answer % "<token>")
    _add_helper(home, "all", answer % "me")
    _write(home, {"credsStore": "all", "credHelpers": {"r.example": "one"}})

    assert (await _auth("r.example/a"))["identitytoken"] == "of r.example"
    assert await _auth("busybox") == {
        "username": "me",
        "password": f"of {_HUB}",
        "serveraddress": _HUB,
    }


@pytest.mark.parametrize(
    "script", ["echo credentials not found; exit 1", "echo no JSON", "echo []", None]
)
async def test_a_helper_that_has_none_leaves_what_the_file_has(
    home: Path, script: str | None
) -> None:
    if script is not None:
        _add_helper(home, "all", script)
    _write(home, {"credsStore": "all", "auths": {"r.example": {"auth": _SECRET}}})

    assert await _auth("r.example/a") == _ME | {"serveraddress": "r.example"}
    assert await _auth("busybox") is None


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
