"""A registry of one image on loopback, well behaved or with one of a registry's faults."""

import gzip
import hashlib
import io
import json
import secrets
import tarfile
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Final, Self

_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG: Final = "application/vnd.docker.container.image.v1+json"
_LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class Registry:
    """Serves `image`. `fault`: none, missing, auth, limit, cut (inside a layer) or silent."""

    def __init__(self, *, fault: str = "none", layer_bytes: int = 2_000_000) -> None:
        self.fault = fault
        self.pulls = 0
        """How often a manifest was fetched."""
        self.authorization: str | None = None
        """What the last request for a manifest showed as its credentials."""
        tar = _tar(layer_bytes)
        self.layer = gzip.compress(tar, 1)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/bin/true"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(tar)]},
        }
        self.config = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _entry(_CONFIG, self.config),
            "layers": [_entry(_LAYER, self.layer)],
        }
        self.manifest = json.dumps(manifest).encode()
        self.digest = _digest(self.manifest)
        self.silence_over = threading.Event()
        registry = self

        class Handler(_Handler):
            owner = registry

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.image = f"{self.host}/gpuyard-test/pulled:{secrets.token_hex(3)}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.silence_over.set()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what matters."""

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        with suppress(ConnectionError):
            self._serve(body=True)

    def _serve(self, *, body: bool) -> None:
        owner = self.owner
        if owner.fault == "auth" and self.headers.get("Authorization") is None:
            self._answer(401, "application/json", _error("UNAUTHORIZED"), body)
        elif self.path == "/v2/":
            self._answer(200, "application/json", b"{}", body)
        elif "/manifests/" in self.path:
            self._serve_manifest(body)
        elif owner.config and _digest(owner.config) in self.path:
            self._answer(200, "application/octet-stream", owner.config, body)
        else:
            self._serve_layer()

    def _serve_manifest(self, body: bool) -> None:
        owner = self.owner
        owner.authorization = self.headers.get("Authorization")
        if owner.fault == "missing":
            self._answer(404, "application/json", _error("MANIFEST_UNKNOWN"), body)
        elif owner.fault == "limit":
            self._answer(429, "application/json", _error("TOOMANYREQUESTS"), body)
        else:
            owner.pulls += body
            self._answer(200, _MANIFEST, owner.manifest, body)

    def _serve_layer(self) -> None:
        layer = self.owner.layer
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(layer)))
        self.end_headers()
        half = len(layer) // 2
        self.wfile.write(layer[:half])
        self.wfile.flush()
        if self.owner.fault == "cut":
            self.close_connection = True
            return
        if self.owner.fault == "silent":
            self.owner.silence_over.wait(30)
        time.sleep(0.6)  # engines report what they have of a layer twice a second
        self.wfile.write(layer[half:])

    def _answer(self, status: int, kind: str, body: bytes, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", _digest(body))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="yard"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)


def _tar(size: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("noise")
        member.size = size
        tar.addfile(member, io.BytesIO(secrets.token_bytes(size)))
    return buffer.getvalue()


def _entry(kind: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(blob), "digest": _digest(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _error(code: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": code.lower()}]}).encode()
