"""The KV manager of these tests hears everything at once."""

import pytest

from pillion.actors.scheduler import kv_mail


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a later turn; test_kv_mail.py has what does."""
    monkeypatch.setattr(kv_mail, "PATIENCE_NS", 0)
