"""Fixtures of the client's tests."""

import pytest

from gpuyard.client import api, follow, submission


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter patience, the same rules."""
    monkeypatch.setattr(submission, "DUPLICATE_S", 0.2)
    monkeypatch.setattr(submission, "ANSWER_S", 0.5)
    monkeypatch.setattr(submission, "STORE_S", 0.5)
    monkeypatch.setattr(api, "ANSWER_S", 0.5)
    monkeypatch.setattr(follow, "RECHECK_S", 0.3)
    monkeypatch.setattr(follow, "GAP_S", 0.05)
    monkeypatch.setattr(follow, "GIVE_UP_S", 0.5)
    monkeypatch.setattr(follow, "GIVE_UP_OUTPUT_S", 0.5)
