"""What replies and documents change: tokens, adopting, distrust of what came before."""

from typing import Any

import pytest

from gpuyard.errors import RemoteProtocolError
from gpuyard_agent.core.containers import Status
from gpuyard_agent.core.document import Document, parse_document, parse_token
from gpuyard_agent.core.intake import (
    Refused,
    adoption_records,
    document_records,
    is_current,
    take_listing,
    token_records,
)
from gpuyard_agent.core.memory import Memory, Record, ended_record, started_record
from tests.support.agent_builders import (
    BOOT,
    NODE,
    TOKEN,
    WALL,
    YARD,
    document,
    ended,
    entry,
    exited,
    here,
    key,
    parsed,
    seen,
    started,
    stop,
)


def memory(**changes: Any) -> Memory:
    made = Memory(yard=YARD, token=TOKEN, applied=(TOKEN, 0), adopting=False, trusting=True)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def take(into: Memory, document: Document) -> list[Record] | Refused:
    records = document_records(into, document, here())
    if not isinstance(records, Refused):
        for record in records:
            into.apply(record)
    return records


def test_a_lower_token_is_refused_and_a_higher_one_remembered() -> None:
    known = memory()
    assert token_records(known, (TOKEN[0], TOKEN[1] - 1)) is Refused.LOWER_TOKEN
    assert token_records(known, (TOKEN[0] - 1, 99)) is Refused.LOWER_TOKEN
    assert token_records(known, TOKEN) == []
    assert token_records(known, (TOKEN[0], 9)) == [{"k": "token", "token": [TOKEN[0], 9]}]


def test_a_new_generation_starts_adopting() -> None:
    known = memory()
    for record in token_records(known, (TOKEN[0] + 1, 1)):
        assert isinstance(record, dict)
        known.apply(record)
    assert known.adopting
    assert not known.trusting


def test_a_newer_document_is_applied_whole() -> None:
    known = memory()
    take(known, parsed(entry("a"), entry("b")))
    assert known.applied == (TOKEN, 1)
    take(known, parsed(entry("b", stop=stop()), entry("c"), revision=2))
    assert known.attempts[key("a")].entry is None
    want = known.attempts[key("b")].entry
    assert want is not None
    assert want["stop"] == stop()
    assert known.attempts[key("c")].entry == entry("c")


def test_only_what_changed_is_written() -> None:
    known = memory()
    take(known, parsed(entry("a"), entry("b")))
    records = take(known, parsed(entry("a"), entry("c"), revision=2))
    assert not isinstance(records, Refused)
    (record,) = records
    assert [e["job"] for e in record["changed"]] == ["c"]
    assert record["gone"] == [["team-a", "b", 1]]


@pytest.mark.parametrize("revision", [0, 1])
def test_an_older_or_equal_document_changes_nothing(revision: int) -> None:
    known = memory(applied=(TOKEN, 1))
    assert take(known, parsed(revision=revision)) is Refused.OLDER


def test_a_new_leader_starts_its_revisions_afresh() -> None:
    known = memory(applied=(TOKEN, 70))
    take(known, parsed(revision=1, token=(TOKEN[0], TOKEN[1] + 1)))
    assert known.applied == ((TOKEN[0], TOKEN[1] + 1), 1)
    assert known.token == (TOKEN[0], TOKEN[1] + 1)


def test_documents_of_lower_tokens_and_other_yards_are_refused() -> None:
    known = memory()
    assert take(known, parsed(revision=9, token=(TOKEN[0], 1))) is Refused.LOWER_TOKEN
    assert take(known, parsed(revision=9, yard="xyz789")) is Refused.OTHER_YARD


def test_without_a_journal_what_is_not_here_is_lost_and_not_started() -> None:
    fresh = Memory(yard=YARD)
    take(fresh, parsed(entry("was-before")))
    result = fresh.attempts[key("was-before")].result
    assert result is not None
    assert result.reason == "runtime_lost"
    assert not fresh.adopting
    # From the next document on, everything is known to be new.
    take(fresh, parsed(entry("was-before"), entry("new"), revision=2))
    assert fresh.attempts[key("new")].result is None


def test_without_a_journal_what_is_here_is_taken_over() -> None:
    fresh = Memory(yard=YARD)
    take_listing(fresh, [seen("a"), seen("b")], absent=[])
    take(fresh, parsed(entry("a")))
    assert fresh.attempts[key("a")].result is None
    assert fresh.adopting, "b is named by nobody yet"
    take(fresh, parsed(entry("a"), entry("b", stop=stop()), revision=2))
    assert not fresh.adopting


def test_entries_of_another_boot_are_not_called_lost() -> None:
    fresh = Memory(yard=YARD)
    take(fresh, parsed(entry("a", boot_id="boot-0")))
    assert fresh.attempts[key("a")].result is None


def test_a_restored_yard_may_name_what_ended_long_ago() -> None:
    known = memory()
    take(known, parsed(entry("ran-to-its-end"), token=(TOKEN[0] + 1, 1)))
    result = known.attempts[key("ran-to-its-end")].result
    assert result is not None
    assert result.reason == "runtime_lost"


def restored(*, revision: int = 1, **entries: Any) -> Document:
    return parsed(*entries.values(), token=(TOKEN[0] + 1, 1), revision=revision)


def rebuilt(known: Memory) -> Memory:
    """As the journal gives it back once it was compacted."""
    again = Memory()
    for record in known.snapshot():
        again.apply(record)
    return again


def running(known: Memory, *names: str) -> None:
    take(known, parsed(*(entry(name) for name in names), revision=1))
    for name in names:
        known.apply({"k": "accepted", "key": list(key(name)), "gpus": []})
        known.apply(started_record(key(name), started()))
        known.attempts[key(name)].container = seen(name)


def test_a_restored_yards_document_leaves_what_it_does_not_name_with_its_entry() -> None:
    known = memory()
    running(known, "a", "b")
    take(known, restored(a=entry("a")))
    assert known.adopting
    for each in (known, rebuilt(known)):
        assert (each.attempts[key("b")].entry, each.attempts[key("b")].former) == (None, entry("b"))
        assert each.attempts[key("a")].former is None
    take(known, restored(revision=2, a=entry("a"), b=entry("b")))
    assert not known.adopting
    assert known.attempts[key("b")].former is None


def test_an_end_that_the_backup_does_not_know_is_kept_until_it_is_named() -> None:
    known = memory()
    running(known, "a")
    known.apply(ended_record(key("a"), ended()))
    take(known, restored())
    assert known.adopting and adoption_records(known) == []
    take(known, restored(revision=2, a=entry("a", stop=stop())))
    assert not known.adopting
    take(known, restored(revision=3))
    assert not known.adopting and known.attempts[key("a")].former is None


def test_an_entry_that_leaves_while_adopting_has_been_dealt_with() -> None:
    known = memory()
    running(known, "a", "b")
    take(known, restored(a=entry("a")))
    take(known, restored(revision=2))
    assert known.attempts[key("a")].former is None
    assert known.attempts[key("b")].former == entry("b")


def test_an_accepted_start_is_kept_until_it_is_named() -> None:
    known = memory()
    take(known, parsed(entry("a")))
    known.apply({"k": "accepted", "key": list(key("a")), "gpus": []})
    take(known, restored())
    assert known.adopting and known.attempts[key("a")].former == entry("a")


def test_what_was_found_running_counts_as_started_for_good() -> None:
    """Taken over without a journal, gone before the next restart: it must not be started again."""
    fresh = Memory(yard=YARD)
    take_listing(fresh, [seen("a")], absent=[])
    fresh.apply(started_record(key("a"), started()))
    take(fresh, parsed(entry("a")))
    again = Memory()
    for record in fresh.snapshot():
        again.apply(record)
    assert again.attempts[key("a")].launched == BOOT


def test_adopting_ends_when_the_last_unnamed_attempt_has_ended() -> None:
    fresh = Memory(yard=YARD)
    take_listing(fresh, [seen("a")], absent=[])
    take(fresh, parsed())
    assert fresh.adopting
    assert adoption_records(fresh) == []
    fresh.attempts[key("a")].result = ended()
    assert adoption_records(fresh) == [{"k": "adopting", "on": False, "trusting": True}]


def test_a_reply_is_current_only_with_our_token_and_no_document() -> None:
    known = memory()
    assert is_current(known, {"token": list(TOKEN), "wanted": None})
    assert not is_current(known, {"token": list(TOKEN), "wanted": {}})
    assert not is_current(known, {"token": [TOKEN[0], 9], "wanted": None})
    assert not is_current(Memory(), {"token": list(TOKEN), "wanted": None})


def test_a_listing_never_unends_what_has_ended() -> None:
    known = memory()
    attempt = known.attempt(key("a"))
    attempt.exit = exited(3)
    attempt.container = seen("a", Status.EXITED)
    take_listing(known, [seen("a")], absent=[])
    assert attempt.container.status is Status.EXITED


def test_a_listing_counts_absences_and_forgets_them() -> None:
    known = memory()
    attempt = known.attempt(key("a"))
    assert take_listing(known, [], absent=[attempt]) == [attempt]
    assert attempt.absences == 1
    take_listing(known, [seen("a")], absent=[])
    assert attempt.absences == 0


@pytest.mark.parametrize(
    "broken",
    [
        {"node": "other"},
        {"yard": None},
        {"yard": "../x"},
        {"revision": "1"},
        {"token": [1]},
        {"token": [1, "2"]},
        {"entries": None},
        {"entries": [{}]},
        {"entries": [entry(), entry()]},
        {"entries": [entry() | {"job": "a.b"}]},
        {"entries": [entry() | {"job": "../a"}]},
        {"entries": [entry() | {"attempt": 0}]},
        {"entries": [entry() | {"gpus": [{"uuid": 1, "milli": 1000}]}]},
        {"entries": [entry() | {"stop": {"reason": "cancelled"}}]},
        {"entries": [entry() | {"spec": None}]},
    ],
)
def test_a_document_that_cannot_be_trusted_is_no_document(broken: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_document(document() | broken, node=NODE)


def test_a_document_is_no_map() -> None:
    with pytest.raises(RemoteProtocolError):
        parse_document([], node=NODE)
    with pytest.raises(RemoteProtocolError):
        parse_token(None)


def test_unknown_fields_of_a_document_are_passed_over() -> None:
    body = document(entry()) | {"later": 1}
    assert list(parse_document(body, node=NODE).entries) == [key()]


def test_the_snapshot_builds_the_same_memory() -> None:
    known = memory()
    take(known, parsed(entry("a"), entry("b")))
    team = ["team-a"]
    for record in (
        {"k": "accepted", "key": [*team, "a", 1], "gpus": []},
        {"k": "launching", "key": [*team, "a", 1], "boot": BOOT},
        {
            "k": "started",
            "key": [*team, "a", 1],
            "container_id": "c",
            "image_digest": None,
            "started_at": "then",
            "at": 3.0,
            "boot": BOOT,
        },
        {
            "k": "intent",
            "key": [*team, "a", 1],
            "reason": "cancelled",
            "signal": "SIGTERM",
            "grace_s": 3.0,
            "at": 4.0,
            "wall": "then",
            "message": None,
            "killed_at": None,
        },
        {
            "k": "ended",
            "key": [*team, "b", 1],
            "reason": "exited",
            "exit_code": 0,
            "message": None,
            "ended_at": "then",
            "usage": None,
        },
        {
            "k": "logs",
            "key": [*team, "a", 1],
            "chunks": 2,
            "stdout": 5,
            "stderr": 0,
            "published": 5,
            "done": False,
        },
        {"k": "unheard-of"},
    ):
        known.apply(record)
    again = Memory()
    for record in known.snapshot():
        again.apply(record)
    assert again == known
    assert WALL
