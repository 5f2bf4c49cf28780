import pytest

from gpuyard.model.moments import is_relative, parse_moment


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("2h", "7200s"),
        ("1-12:00:00", "129600s"),
        ("2026-01-31T18:00:00Z", "2026-01-31T18:00:00.000Z"),
        ("2026-01-31 18:00+02:00", "2026-01-31T16:00:00.000Z"),
        ("2026-01-31T18:00:00.123456Z", "2026-01-31T18:00:00.123Z"),
    ],
)
def test_kept_forms_read_back_equal(text: str, kept: str) -> None:
    assert parse_moment(text) == kept
    assert parse_moment(kept) == kept
    assert is_relative(kept) == ("T" not in kept)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tomorrow", "'tomorrow' is no time; write 2h"),
        ("2026-01-31", "has no zone; append Z"),
        ("2026-02-30T00:00:00Z", "is no time"),
        ("0001-01-01T00:00:00+14:00", "is no time"),
        ("0s", "from 1 ms to 10 years"),
        ("9999d", "from 1 ms to 10 years"),
        ("", "is no time"),
    ],
)
def test_what_is_no_moment_is_refused_by_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_moment(text)
