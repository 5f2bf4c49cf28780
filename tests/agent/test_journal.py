"""The journal: what was written is there again, whatever happened to the process or the file."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard_agent.core.memory import Memory
from gpuyard_agent.journal import (
    DirectoryLock,
    FileJournal,
    JournalError,
    MemoryJournal,
    Record,
)


def opened(directory: Path) -> tuple[FileJournal, list[Record] | None]:
    journal = FileJournal(directory)
    return journal, journal.open()


def test_no_file_is_no_journal(tmp_path: Path) -> None:
    journal, records = opened(tmp_path / "new")
    assert records is None
    journal.close()


def test_records_come_back_in_order(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append([{"k": "a", "n": 1}])
    journal.append([{"k": "b", "text": "über\nzwei Zeilen"}, {"k": "c"}])
    journal.close()
    again, records = opened(tmp_path)
    assert records == [{"k": "a", "n": 1}, {"k": "b", "text": "über\nzwei Zeilen"}, {"k": "c"}]
    again.close()


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path / "node")
    journal.compact([{"k": "a"}])
    journal.close()
    assert (tmp_path / "node" / "journal").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("torn", [b'{"k":"b', b'{"k":"b"}', b"\x00\x00\x00", b"nonsense\n"])
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path: Path, torn: bytes) -> None:
    journal, _ = opened(tmp_path)
    journal.append([{"k": "a"}])
    journal.close()
    with journal.path.open("ab") as file:
        file.write(torn)
    again, records = opened(tmp_path)
    assert records == [{"k": "a"}]
    again.append([{"k": "c"}])
    again.close()
    last, records = opened(tmp_path)
    assert records == [{"k": "a"}, {"k": "c"}]
    last.close()


def test_damage_in_the_middle_is_no_journal_and_is_kept_aside(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append([{"k": "a"}, {"k": "b"}])
    journal.close()
    journal.path.write_bytes(journal.path.read_bytes().replace(b'{"k":"a"}', b'{"k":#a"}'))
    again, records = opened(tmp_path)
    assert records is None
    assert (tmp_path / "journal.damaged").exists()
    again.close()


def test_an_empty_file_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal").touch()
    journal, records = opened(tmp_path)
    assert records is None
    journal.close()


def test_a_journal_of_a_later_version_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text('{"k":"journal","v":2}\n{"k":"a"}\n')
    with pytest.raises(JournalError, match="version"):
        FileJournal(tmp_path).open()


async def test_sync_makes_it_durable(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append([{"k": "a"}])
    assert not journal.is_synced
    await asyncio.gather(journal.sync(), journal.sync())
    assert journal.is_synced
    await journal.sync()
    journal.close()


async def test_what_is_written_during_a_sync_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened(tmp_path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    journal.append([{"k": "a"}])
    first = asyncio.create_task(journal.sync())
    await asyncio.sleep(0)
    journal.append([{"k": "b"}])
    await first
    assert journal.is_synced
    assert synced[-1] == journal.path.stat().st_size
    journal.close()


def test_compaction_keeps_what_counts_and_goes_on(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    filler = {"k": "logs", "text": "x" * 1000}
    while not journal.wants_compaction:
        journal.append([filler])
    journal.compact([{"k": "snapshot"}])
    assert journal.path.stat().st_size < 1000
    assert journal.is_synced
    assert not journal.wants_compaction
    journal.append([{"k": "after"}])
    journal.close()
    again, records = opened(tmp_path)
    assert records == [{"k": "snapshot"}, {"k": "after"}]
    again.close()


def test_a_failed_write_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, _ = opened(tmp_path)
    journal.append([{"k": "a"}])
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
    with pytest.raises(JournalError):
        journal.append([{"k": "lost"}])
    monkeypatch.undo()
    journal.append([{"k": "b"}])
    journal.close()
    again, records = opened(tmp_path)
    assert records == [{"k": "a"}, {"k": "b"}]
    again.close()


def test_another_yard_starts_afresh_beside_the_old_one(tmp_path: Path) -> None:
    journal, _ = opened(tmp_path)
    journal.append([{"k": "yard", "yard": "old"}])
    journal.set_aside("old")
    journal.append([{"k": "yard", "yard": "new"}])
    journal.close()
    again, records = opened(tmp_path)
    assert records == [{"k": "yard", "yard": "new"}]
    assert (tmp_path / "journal.old").exists()
    again.close()


def test_records_outlive_a_killed_process(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from gpuyard_agent.journal import FileJournal\n"
        "journal = FileJournal(Path(sys.argv[1])); journal.open()\n"
        "journal.append([{'k': 'yard', 'yard': 'abc123'}])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    journal, records = opened(tmp_path)
    memory = Memory()
    for record in records or ():
        memory.apply(record)
    assert memory.yard == "abc123"
    journal.close()


def test_a_second_agent_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    with pytest.raises(JournalError, match=rf"another agent \(pid {os.getpid()}\) uses"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot use"):
        DirectoryLock(tmp_path / "file" / "x").acquire()
    with pytest.raises(JournalError, match="cannot use"):
        FileJournal(tmp_path / "file" / "x").open()


async def test_the_memory_journal_keeps_nothing_and_is_always_synced() -> None:
    journal = MemoryJournal()
    journal.append([{"k": "a"}])
    assert journal.is_synced
    await journal.sync()
    journal.compact([])
    journal.close()


async def test_one_of_what_ends_with_the_host_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise AssertionError("no sync is due")

    monkeypatch.setattr(os, "fsync", refuse)
    journal = FileJournal(tmp_path, is_durable=False)
    journal.open()
    journal.append([{"k": "a"}])
    assert journal.is_synced
    await journal.sync()
    journal.compact([{"k": "b"}])
    journal.close()
    assert opened(tmp_path)[1] == [{"k": "b"}]
