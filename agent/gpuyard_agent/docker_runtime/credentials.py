"""The node's own credentials for registries, as `docker login` leaves them.

They are read anew for each pull, so that a login counts without a restart of the agent. What
cannot be read is no credentials, as it is for the docker command: the image may be public, and if
it is not the registry's refusal ends the pull.
"""

import asyncio
import base64
import binascii
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import structlog

log = structlog.get_logger()
_HUB: Final = "docker.io"
_HUB_KEY: Final = "https://index.docker.io/v1/"
"""What Docker Hub is called in the file and by helpers."""
_HELPER_S: Final = 30.0
_TOKEN_USER: Final = "<token>"
"""The user that a helper names when its secret is an identity token."""

Credentials = dict[str, str]


async def registry_auth(image: str) -> str | None:
    """The X-Registry-Auth header for a pull of `image`, None without credentials for its registry."""
    file = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")) / "config.json"
    config = _read(file)
    key = _key(registry_of(image))
    found = None
    if helper := _table(config.get("credHelpers")).get(key) or config.get("credsStore"):
        found = await _ask(f"docker-credential-{helper}", key)
    found = found or _stored(_table(config.get("auths")), key)
    return base64.urlsafe_b64encode(json.dumps(found).encode()).decode() if found else None


def registry_of(image: str) -> str:
    """The registry that an image's name begins with, Docker Hub where it begins with none."""
    first, slash, _ = image.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return first if is_host else _HUB


def _key(registry: str) -> str:
    return _HUB_KEY if registry in (_HUB, f"index.{_HUB}") else registry


def _read(file: Path) -> dict[str, Any]:
    try:
        return _table(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        log.warning("registry credentials cannot be read", file=str(file), fault=str(fault))
        return {}


def _stored(auths: Mapping[str, Any], key: str) -> Credentials | None:
    """What the file itself has; its keys may be addresses of which the host alone counts."""
    entry = auths.get(key)
    if entry is None:
        entry = next((auths[name] for name in auths if _key(_host(name)) == key), None)
    entry = _table(entry)
    if token := entry.get("identitytoken"):
        return {"identitytoken": str(token), "serveraddress": key}
    try:
        text = base64.b64decode(str(entry.get("auth") or ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        log.warning("registry credentials cannot be read", registry=key, fault="not base64")
        return None
    user, colon, password = text.partition(":")
    if not colon:
        return None
    return {"username": user, "password": password.strip("\0"), "serveraddress": key}


async def _ask(helper: str, key: str) -> Credentials | None:
    """What a credential helper has: the registry on its input, a JSON object on its output."""
    try:
        process = await asyncio.create_subprocess_exec(
            helper,
            "get",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as fault:
        log.warning("credential helper cannot be run", helper=helper, fault=str(fault))
        return None
    try:
        async with asyncio.timeout(_HELPER_S):
            output, _ = await process.communicate(key.encode())
        if process.returncode:
            # It has none for this registry, which it says as it says that it failed.
            log.debug("credential helper gave none", helper=helper, said=output.decode().strip())
            return None
        found = _table(json.loads(output))
    except (TimeoutError, ValueError) as fault:
        why = str(fault) or f"no answer within {_HELPER_S:g} s"
        log.warning("credential helper gave no answer", helper=helper, fault=why)
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    user, secret = str(found.get("Username") or ""), str(found.get("Secret") or "")
    if not secret:
        return None
    if user == _TOKEN_USER:
        return {"identitytoken": secret, "serveraddress": key}
    return {"username": user, "password": secret, "serveraddress": key}


def _host(address: str) -> str:
    return address.removeprefix("http://").removeprefix("https://").partition("/")[0]


def _table(found: object) -> dict[str, Any]:
    """A JSON object as it is, anything else as an empty one."""
    return found if isinstance(found, dict) else {}
