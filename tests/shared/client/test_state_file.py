"""Backups on disk: what is written is read back, and nothing else is taken for one."""

import gzip
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuyard.client.state_file import Backup, BadBackup, Document, read_backup, write_backup

BACKUP = Backup(
    yard="abc123",
    generation=1_700_000_000_000,
    sequence=42,
    taken_at="2026-01-01T00:00:00.000Z",
    made_by="gpuyard 0.1.0",
    documents={
        "job.t.a": Document(b"\x81\xa1v\x01"),
        "done.t.b": Document(bytes(range(256)), "2026-01-31T00:00:00.000Z"),
        "mix": Document(b""),
    },
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "yard.gz"
    write_backup(path, BACKUP)
    return path


def test_it_comes_back_equal_and_only_its_owner_may_read_it(file: Path) -> None:
    assert read_backup(file)[0] == BACKUP
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_the_same_state_has_the_same_checksum(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "again.gz"
    assert write_backup(other, BACKUP) == read_backup(file)[1]


def test_a_write_that_fails_leaves_the_file_before_it(file: Path) -> None:
    broken = Backup("y", 1, 1, "", "", {"job.t.a": Document("no bytes")})  # type: ignore[arg-type]

    with pytest.raises(TypeError):
        write_backup(file, broken)

    assert read_backup(file)[0] == BACKUP
    assert list(file.parent.iterdir()) == [file]


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        return gzip.compress(b"".join(change(gzip.decompress(data).splitlines(keepends=True))))

    return damage


def _with_key(key: object) -> Callable[[bytes], bytes]:
    line = json.dumps({"key": key, "data": ""}).encode() + b"\n"
    return _lines(lambda lines: [lines[0], line, *lines[1:]])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:-20], "cut off or damaged"),
        (lambda data: data[:60] + bytes(8) + data[68:], "damaged|no backup"),
        (lambda data: b"", "checksum differs"),
        (lambda data: b"hello", "no backup of a yard"),
        (_lines(lambda lines: lines[:-1]), "checksum differs"),
        (_lines(lambda lines: [lines[0], *lines[2:]]), "checksum differs"),
        (_lines(lambda lines: [lines[0].replace(b"abc", b"xyz"), *lines[1:]]), "checksum differs"),
        (_lines(lambda lines: [b'{"gpuyard_backup":2}\n', *lines[1:]]), "has format 2"),
        (_lines(lambda lines: [b"[1]\n"]), "no backup of a yard"),
        (_lines(lambda lines: [b'{"a":1}\n']), "no backup of a yard"),
        (_with_key("leader.yard"), "'leader.yard' is no key"),
        (_with_key("wal.1.1"), "'wal.1.1' is no key"),
        (_with_key("job.>"), "'job.>' is no key"),
        (_with_key(3), "3 is no key"),
    ],
)
def test_anything_else_is_refused_with_one_line(
    file: Path, damage: Callable[[bytes], bytes], told: str
) -> None:
    file.write_bytes(damage(file.read_bytes()))

    with pytest.raises(BadBackup, match=told) as fault:
        read_backup(file)

    assert str(file) in str(fault.value) and "\n" not in str(fault.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadBackup, match="no such file"):
        read_backup(tmp_path / "none.gz")
