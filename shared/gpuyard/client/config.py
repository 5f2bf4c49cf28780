"""Where a client finds its yard: each value with the place it came from.

Precedence, first wins: what the caller says; the context that the caller names; `GPUYARD_*`; the
context that `GPUYARD_CONTEXT` names; the yard of this folder (`.gpuyard/gpuyard.env`, searched
upwards); `~/.config/gpuyard/config.toml`; `/etc/gpuyard/config.toml`; the defaults.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuyard import small_files
from gpuyard.client.yard_file import find_yard
from gpuyard.errors import GpuyardError
from gpuyard.model import ids
from gpuyard.subjects import OPERATOR_TENANT

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
SYSTEM_FILE: Final = Path("/etc/gpuyard/config.toml")
KEYS: Final = ("url", "tenant", "user", "credentials", "ca")
_SCHEME: Final = re.compile(r"(nats|tls|ws|wss)://.+")


class ConfigError(GpuyardError):
    """A setting that cannot be used; the line names the setting and where it came from."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and the place it came from."""

    value: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Config:
    """All that is needed to reach a yard; `origins` has the place of each value."""

    url: str
    tenant: str
    user: str
    credentials: str | None
    ca: str | None
    context: str | None
    origins: Mapping[str, str]


def load_config(
    *,
    url: str | None = None,
    tenant: str | None = None,
    user: str | None = None,
    credentials: str | os.PathLike[str] | None = None,
    context: str | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Config:
    """The settings for these arguments; raises ConfigError with one line that says what to mend."""
    env = os.environ if environ is None else environ
    given = {
        "url": url,
        "tenant": tenant,
        "user": user,
        "credentials": os.fspath(credentials) if credentials is not None else None,
    }
    layers = [_layer(given, "argument")]
    files = _Files(env)
    if context:
        layers.append(files.context(context, "argument"))
    layers.append(_layer({key: env.get(f"GPUYARD_{key.upper()}") for key in KEYS}, "GPUYARD_"))
    named = None if context else env.get("GPUYARD_CONTEXT")
    if named:
        layers.append(files.context(named, "GPUYARD_CONTEXT"))
    if yard := find_yard(folder or Path.cwd(), env):
        layers.append(_layer({"url": yard.url}, str(yard.path)))
    standing = None if context or named else files.standing()
    if standing:
        layers.append(files.context(standing, "the file's own choice"))
    layers.append(_defaults())
    return _merge(layers, context or named or standing)


def own_file(environ: Mapping[str, str]) -> Path:
    """The caller's own configuration file, whether it exists or not."""
    if named := environ.get("GPUYARD_CONFIG"):
        return Path(named)
    home = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~") / ".config")
    return home.expanduser() / "gpuyard" / "config.toml"


def known_contexts(environ: Mapping[str, str]) -> list[str]:
    """Names of the contexts in every file that is read; raises ConfigError for a faulty one."""
    documents = _Files(environ).documents()
    return sorted({name for _, document in documents for name in document.get("contexts", {})})


def check_value(key: str, value: str) -> None:
    """Raises ConfigError where the value could not be used; files need not exist yet."""
    setting = Setting(value, "the command line")
    if key == "url":
        _checked_url(setting)
    elif key == "tenant":
        _check_tenant(setting)
    elif key == "user":
        _check_user(setting)
    elif key not in KEYS:
        raise ConfigError(f"unknown key {key!r}; the keys are {', '.join(KEYS)}")


def _layer(values: Mapping[str, str | None], origin: str) -> dict[str, Setting]:
    full = origin if origin != "GPUYARD_" else None
    return {
        key: Setting(value, full or f"GPUYARD_{key.upper()}")
        for key, value in values.items()
        if value
    }


def _defaults() -> dict[str, Setting]:
    values = {"url": DEFAULT_URL, "tenant": "default", "user": ids.user_from_login(login_name())}
    return _layer(values, "default") | {
        "credentials": Setting(None, "default"),
        "ca": Setting(None, "default"),
    }


def login_name() -> str:
    """Who runs this process, from the system's user database where it knows."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return os.environ.get("LOGNAME") or f"uid-{os.geteuid()}"


def _merge(layers: list[dict[str, Setting]], context: str | None) -> Config:
    found = {key: next(layer[key] for layer in layers if key in layer) for key in KEYS}
    tenant, user = found["tenant"], found["user"]
    _check_tenant(tenant)
    _check_user(user)
    return Config(
        url=_checked_url(found["url"]),
        tenant=tenant.value or "",
        user=user.value or "",
        credentials=_path(found["credentials"], "credentials"),
        ca=_path(found["ca"], "ca"),
        context=context,
        origins={key: setting.origin for key, setting in found.items()},
    )


def _check_tenant(setting: Setting) -> None:
    if setting.value != OPERATOR_TENANT and not ids.is_name(setting.value or ""):
        raise ConfigError(
            f"tenant {setting.value!r} (from {setting.origin}) is no name: "
            "1 to 63 lower-case letters, digits and hyphens"
        )


def _check_user(setting: Setting) -> None:
    if not ids.is_user(setting.value or ""):
        raise ConfigError(
            f"user {setting.value!r} (from {setting.origin}) is no name: "
            "1 to 64 lower-case letters, digits, _ and -"
        )


def _checked_url(setting: Setting) -> str:
    servers = []
    for part in (setting.value or "").split(","):
        server = part.strip()
        if "://" not in server:
            server = f"nats://{server}"
        if not _SCHEME.fullmatch(server) or re.search(r"\s", server):
            raise ConfigError(
                f"the url from {setting.origin} is not one: write nats://HOST:PORT or tls://HOST"
            )
        servers.append(server)
    return ",".join(servers)


def _path(setting: Setting, what: str) -> str | None:
    if setting.value is None:
        return None
    path = Path(setting.value).expanduser()
    if not path.is_file():
        raise ConfigError(f"the {what} file {path} (from {setting.origin}) does not exist")
    return str(path)


class _Files:
    """The user's file, then the system's; read only when something asks."""

    def __init__(self, env: Mapping[str, str]) -> None:
        named = env.get("GPUYARD_CONFIG")
        own = own_file(env)
        if named and not own.is_file():
            raise ConfigError(f"{own} (from GPUYARD_CONFIG) does not exist")
        self._paths = [own] if named else [own, SYSTEM_FILE]
        self._read: list[tuple[Path, dict[str, Any]]] | None = None

    def documents(self) -> list[tuple[Path, dict[str, Any]]]:
        if self._read is None:
            self._read = [(path, read_toml(path)) for path in self._paths if path.is_file()]
        return self._read

    def standing(self) -> str | None:
        """The context that is used when nobody names one: the file's `context`, or `default`."""
        for path, document in self.documents():
            chosen = document.get("context")
            if chosen is not None and not isinstance(chosen, str):
                raise ConfigError(f"{path}: context must be a text")
            if chosen or "default" in document.get("contexts", {}):
                return chosen or "default"
        return None

    def context(self, name: str, said_by: str) -> dict[str, Setting]:
        """The values of [contexts.NAME] from the first file that has it."""
        known: list[str] = []
        for path, document in self.documents():
            contexts = document.get("contexts", {})
            if name in contexts:
                return _checked_context(path, name, contexts[name])
            known += contexts
        listed = ", ".join(sorted(set(known))) or "none"
        raise ConfigError(f"there is no context {name!r} ({said_by}); known contexts: {listed}")


def read_toml(path: Path) -> dict[str, Any]:
    """A configuration file; raises ConfigError where it is none."""
    import tomllib  # here, since most callers have no file

    try:
        document = tomllib.loads(small_files.read_text(path))
    except OSError as fault:
        raise ConfigError(f"{path} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise ConfigError(f"{path} is not TOML: {fault}") from fault
    unknown = set(document) - {"context", "contexts"}
    if unknown:
        raise ConfigError(
            f"{path}: unknown key {min(unknown)!r}; the keys are context and [contexts.NAME]"
        )
    if not isinstance(document.get("contexts", {}), dict):
        raise ConfigError(f"{path}: contexts must be tables, as [contexts.lab]")
    return document


def _checked_context(path: Path, name: str, values: Any) -> dict[str, Setting]:
    where = f"{path} [contexts.{name}]"
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a table")
    for key, value in values.items():
        if key not in KEYS:
            raise ConfigError(f"{where}: unknown key {key!r}; the keys are {', '.join(KEYS)}")
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {key} must be a text")
    return _layer(values, where)
