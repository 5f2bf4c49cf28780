"""Where each setting comes from, and what is said of one that cannot be used."""

import os
import re
from pathlib import Path

import pytest

from gpuyard.client import config as module
from gpuyard.client.config import ConfigError, load_config
from gpuyard.client.yard_file import find_yard, lives, read_yard, started_ticks, write_yard

FILE = """
context = "lab"
[contexts.lab]
url = "nats://lab:4222"
tenant = "research"
[contexts.prod]
url = "tls://prod"
user = "robot"
"""


@pytest.fixture(autouse=True)
def no_system_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "SYSTEM_FILE", tmp_path / "no-such-file")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose home holds FILE."""
    folder = tmp_path / "home" / ".config" / "gpuyard"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(FILE)
    return {"HOME": str(tmp_path / "home")}


def test_without_anything_there_are_defaults(tmp_path: Path) -> None:
    config = load_config(environ={"HOME": str(tmp_path)}, folder=tmp_path)
    assert (config.url, config.tenant) == ("nats://127.0.0.1:4222", "default")
    assert set(config.origins.values()) == {"default"}
    assert config.credentials is None


def test_the_file_chooses_its_context(home: dict[str, str], tmp_path: Path) -> None:
    config = load_config(environ=home, folder=tmp_path)
    assert (config.url, config.tenant, config.context) == ("nats://lab:4222", "research", "lab")
    assert config.origins["url"].endswith("config.toml [contexts.lab]")
    assert config.origins["user"] == "default"


def test_the_environment_goes_before_the_file(home: dict[str, str], tmp_path: Path) -> None:
    config = load_config(environ=home | {"GPUYARD_TENANT": "ops"}, folder=tmp_path)
    assert (config.tenant, config.origins["tenant"]) == ("ops", "GPUYARD_TENANT")
    assert config.url == "nats://lab:4222"


def test_a_named_context_goes_before_the_environment(home: dict[str, str], tmp_path: Path) -> None:
    env = home | {"GPUYARD_URL": "nats://env", "GPUYARD_CONTEXT": "lab"}
    assert load_config(context="prod", environ=env, folder=tmp_path).url == "tls://prod"
    config = load_config(environ=env | {"GPUYARD_CONTEXT": "prod"}, folder=tmp_path)
    assert (config.url, config.user) == ("nats://env", "robot")


def test_an_argument_goes_before_all(home: dict[str, str], tmp_path: Path) -> None:
    config = load_config(url="h:1", context="prod", environ=home, folder=tmp_path)
    assert (config.url, config.origins["url"]) == ("nats://h:1", "argument")


def test_a_yard_of_this_folder_is_found_upwards(home: dict[str, str], tmp_path: Path) -> None:
    yard = tmp_path / "project" / ".gpuyard"
    below = tmp_path / "project" / "a" / "b"
    below.mkdir(parents=True)
    yard.mkdir()
    write_yard(yard / "gpuyard.env", url="nats://t@127.0.0.1:5", pid=os.getpid())
    config = load_config(environ=home, folder=below)
    assert config.url == "nats://t@127.0.0.1:5"
    assert config.origins["url"] == str(yard / "gpuyard.env")
    assert load_config(environ=home | {"GPUYARD_URL": "x"}, folder=below).url == "nats://x"
    assert load_config(context="lab", environ=home, folder=below).url == "nats://lab:4222"
    named = load_config(environ=home | {"GPUYARD_DIR": str(yard)}, folder=tmp_path)
    assert named.url == "nats://t@127.0.0.1:5"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o400])
def test_a_yard_file_that_others_may_touch_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "gpuyard.env"
    write_yard(path, url="nats://t@h", pid=os.getpid())
    assert read_yard(path) is not None
    path.chmod(mode)
    assert read_yard(path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_yard_file_of_somebody_else_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "gpuyard.env"
    write_yard(path, url="nats://t@h", pid=os.getpid())
    os.chown(path, 12345, -1)
    assert read_yard(path) is None


def test_a_yard_that_is_gone_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / ".gpuyard"
    folder.mkdir()
    path = folder / "gpuyard.env"
    write_yard(path, url="nats://t@h", pid=os.getpid())
    # The same pid, another process: its start differs.
    path.write_text(re.sub(r"STARTED=\d+", "STARTED=1", path.read_text()))
    assert read_yard(path) is None
    path.write_text("GPUYARD_URL=nats://t@h\nGPUYARD_PID=4194999\n")
    assert find_yard(tmp_path, {}) is None


def test_a_link_and_rubbish_are_no_yard_files(tmp_path: Path) -> None:
    real = tmp_path / "real"
    write_yard(real, url="nats://t@h", pid=os.getpid())
    link = tmp_path / "link"
    link.symlink_to(real)
    assert read_yard(link) is None
    real.write_bytes(b"\xff\x00 no lines")
    assert read_yard(real) is None
    assert read_yard(tmp_path) is None


def test_a_process_is_known_by_its_start() -> None:
    assert lives(os.getpid(), started_ticks(os.getpid()))
    assert not lives(os.getpid(), "1")
    assert lives(os.getpid(), "")


@pytest.mark.parametrize(
    ("text", "env", "line"),
    [
        ("url = 1", {}, "unknown key 'url'"),
        ("[contexts.a]\nurll = 'x'", {"GPUYARD_CONTEXT": "a"}, "unknown key 'urll'"),
        ("[contexts.a]\nurl = 1", {"GPUYARD_CONTEXT": "a"}, "url must be a text"),
        ("contexts = 3", {}, "contexts must be tables"),
        ("context = 3", {}, "context must be a text"),
        ("[contexts.a", {}, "is not TOML"),
        ("[contexts.a]\nurl='n'", {"GPUYARD_CONTEXT": "b"}, "no context 'b' (GPUYARD_CONTEXT)"),
        ("", {"GPUYARD_TENANT": "Big Team"}, "tenant 'Big Team' (from GPUYARD_TENANT)"),
        ("", {"GPUYARD_USER": "a.b"}, "user 'a.b' (from GPUYARD_USER)"),
        ("", {"GPUYARD_URL": "http://x"}, "the url from GPUYARD_URL is not one"),
        ("", {"GPUYARD_URL": "nats://a b"}, "the url from GPUYARD_URL is not one"),
        ("", {"GPUYARD_CREDENTIALS": "/no/file"}, "the credentials file /no/file"),
        ("", {"GPUYARD_CONFIG": "/no/file"}, "/no/file (from GPUYARD_CONFIG) does not exist"),
    ],
)
def test_a_fault_is_one_clear_line(
    text: str, env: dict[str, str], line: str, home: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "home" / ".config" / "gpuyard" / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(environ=home | env, folder=tmp_path)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_several_servers_and_a_missing_scheme() -> None:
    config = load_config(url="a:1, tls://b", environ={}, folder=Path("/"))
    assert config.url == "nats://a:1,tls://b"


def test_the_operators_tenant_is_accepted() -> None:
    assert load_config(tenant="_", environ={}, folder=Path("/")).tenant == "_"
