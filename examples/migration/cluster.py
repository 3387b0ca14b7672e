"""A stand-in for the Postgres cluster: an embedded SQLite database that keeps score.

Every operation is logged when it commits, so that the demo can tell afterwards whether work
was done twice; the cutover script refuses, and records a violation, while lag is too high.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

TABLES = ("customers", "orders", "payments", "invoices", "sessions", "users_history")
FLAGGED = ("orders", "payments", "users_history")
SAFE_LAG = 2.0


class Cluster:
    """The database that the agent's tools act on.

    Args:
        path: its SQLite file; created with all tables if missing.
        pause: called in the middle of a fix, before it commits (the demo kills there).
    """

    def __init__(self, path: Path, pause: Callable[[str], None] = lambda table: None) -> None:
        self.path = path
        self.pause = pause
        with closing(self._connect()) as conn, conn:
            conn.execute("CREATE TABLE IF NOT EXISTS tables (name PRIMARY KEY, compatible)")
            conn.execute("CREATE TABLE IF NOT EXISTS operations (name, target)")
            conn.execute("CREATE TABLE IF NOT EXISTS violations (lag)")
            rows = [(name, name not in FLAGGED) for name in TABLES]
            conn.executemany("INSERT OR IGNORE INTO tables VALUES (?, ?)", rows)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=10)

    def _log(self, conn: sqlite3.Connection, name: str, target: str = "") -> None:
        conn.execute("INSERT INTO operations VALUES (?, ?)", (name, target))

    def audit(self, table: str) -> str:
        """Check one table's schema against the new region's version."""
        with closing(self._connect()) as conn, conn:
            found = conn.execute("SELECT compatible FROM tables WHERE name = ?", (table,))
            (compatible,) = found.fetchone()
            self._log(conn, "audit_schema", table)
        return "compatible" if compatible else "FLAGGED: incompatible column types"

    def fix(self, table: str) -> str:
        """Migrate one table's columns in a single transaction."""
        with closing(self._connect()) as conn, conn:
            conn.execute("UPDATE tables SET compatible = 1 WHERE name = ?", (table,))
            self._log(conn, "fix_table", table)
            self.pause(table)
        return f"fixed, script sql/fix_{table}.sql"

    def lag(self) -> float:
        """Seconds that the replica is behind; it falls from one look to the next."""
        with closing(self._connect()) as conn, conn:
            self._log(conn, "measure_lag")
            return self._lag(conn)

    def _lag(self, conn: sqlite3.Connection) -> float:
        (looks,) = conn.execute(
            "SELECT count(*) FROM operations WHERE name = 'measure_lag'"
        ).fetchone()
        return round(max(0.3, 7.7 - 1.3 * looks), 1)

    def cutover(self) -> str:
        """Point production at the new region; refuses while the replica is behind."""
        with closing(self._connect()) as conn, conn:
            lag = self._lag(conn)
            if lag >= SAFE_LAG:
                conn.execute("INSERT INTO violations VALUES (?)", (lag,))
                return f"REFUSED: replication lag is {lag}s"
            self._log(conn, "run_cutover")
        return f"production now runs in us-west-2b (lag was {lag}s)"

    def report(self) -> tuple[dict[tuple[str, str], int], list[float]]:
        """How often each operation was carried out, and the violations."""
        with closing(self._connect()) as conn:
            counted = conn.execute("SELECT name, target, count(*) FROM operations GROUP BY 1, 2")
            operations = {(name, target): count for name, target, count in counted}
            violations = [lag for (lag,) in conn.execute("SELECT lag FROM violations")]
        return operations, violations
