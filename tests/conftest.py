"""Shared fixtures: scripted agents, and where the real conversations are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    max_examples=150,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def transcripts() -> Path:
    """The folder of recorded conversations."""
    folder = SHARED / "transcripts"
    if not folder.is_dir():
        pytest.skip("the recorded conversations (../shared/transcripts) are not here")
    return folder
