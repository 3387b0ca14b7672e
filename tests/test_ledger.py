"""The ledger document, its file names, and its atomic export."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handoff_graph import HandoffWarning, LedgerExporter, merge, task_update
from handoff_graph.ledger import ledger_name, read_front_matter, render_ledger

AT = "2026-11-27T22:40:00.000000Z"


def state(**fields: Any) -> dict[str, Any]:
    return {**merge({}, task_update(at=AT, by="human", **fields)), "revision": 23}


def text_of(task: dict[str, Any], thread: str = "migration") -> str:
    return render_ledger(task, thread=thread, checkpoint="1f0c", updated=AT)


def export(exporter: LedgerExporter, task: dict[str, Any], thread: str = "migration") -> Any:
    return exporter.export(task, thread=thread, checkpoint="1f0c", at=AT)


FULL: dict[str, Any] = {
    "title": "Postgres region migration",
    "objective": "Migrate prod to us-west-2b with zero data loss.",
    "status": "in_progress",
    "owner": "agent-session-14",
    "constraints": [{"id": "c1", "text": "Do NOT run cutover until lag is under 2s."}],
    "done": [{"id": "d1", "text": "Schema audit complete"}],
    "in_progress": [{"id": "p1", "text": "Review trigger"}],
    "blocked": [{"id": "b1", "text": "users_history", "needs": "manual review"}],
    "decisions": [{"id": "k1", "text": "Logical replication", "why": "version skew"}],
    "artifacts": [{"uri": "sql/fix_orders.sql", "what": "created"}],
    "open_questions": ["Who owns DNS?"],
    "secrets": [{"name": "Replication password", "where": "Vault secret/pg/replication"}],
    "next_action": "Resolve the trigger, then re-check lag.",
}


def test_every_field_is_on_a_line_of_its_section() -> None:
    lines = text_of(state(**FULL)).splitlines()
    for line in (
        "thread: migration",
        "revision: 23",
        "checkpoint: 1f0c",
        "# Task: Postgres region migration",
        "- [c1] Do NOT run cutover until lag is under 2s. — human, 2026-11-27",
        "- [x] [d1] Schema audit complete",
        "- [ ] [p1] Review trigger",
        "- [b1] users_history: needs manual review",
        "- [k1] Logical replication; because version skew — human, 2026-11-27",
        "- `sql/fix_orders.sql` — created",
        "- Replication password: Vault secret/pg/replication (never in this file)",
        "Resolve the trigger, then re-check lag.",
    ):
        assert line in lines, line
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[:3] == ["## Objective", "## Constraints", "## Done"]


def test_the_same_revision_is_the_same_bytes() -> None:
    assert text_of(state(**FULL)) == text_of(state(**FULL))


NASTY = st.text(
    alphabet=st.sampled_from("ab -#|>`<[]x\n\r\t\x00\u2028\u202e\ufeff01.*_~\"'\\:…é"), max_size=60
).map(lambda text: f"{text}a")


@given(NASTY, NASTY)
def test_data_cannot_forge_a_heading_an_item_or_front_matter(said: str, more: str) -> None:
    def shape(one: str, other: str) -> list[str]:
        task = state(objective=other, next_action=one, done=[one], notes=[other], title=one)
        lines = text_of(task).split("\n")
        marks = ("#", "- ", "--", "* ", "+ ", "> ", "|", "```", "~~~", "<")
        return [
            line[:4] for line in lines if line.startswith(marks) or re.match(r"\d+[.)]\s", line)
        ]

    assert shape(said, more) == shape("plain", "words")


@pytest.mark.parametrize("thread", ["a: b", "true", "1.5", "x\ny", '"quoted"', "- dash", "#x", "é"])
def test_front_matter_reads_back(thread: str) -> None:
    text = text_of(state(**FULL), thread)
    front = read_front_matter(text)
    assert front is not None
    assert (front.thread, front.revision, front.checkpoint, front.intact) == (
        thread,
        23,
        "1f0c",
        True,
    )
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(text.split("---\n")[1])["thread"] == thread


def test_an_edit_of_the_front_matter_shows_too() -> None:
    edited = read_front_matter(text_of(state(**FULL)).replace("agent-session-14", "alice"))
    assert edited is not None
    assert not edited.intact


def test_what_a_person_wrote_reads_as_they_wrote_it() -> None:
    words = "Keep lag < 2s & load <= 3, نمی‌دانم."
    assert words in text_of(state(constraints=[words]))


def test_an_edit_shows_in_the_front_matter_and_line_ends_do_not() -> None:
    text = text_of(state(**FULL))
    edited = read_front_matter(text.replace("Review trigger", "Review triggers"))
    assert edited is not None
    assert not edited.intact
    crlf = read_front_matter("\ufeff" + text.replace("\n", "\r\n"))
    assert crlf is not None
    assert crlf.intact
    assert read_front_matter("# mine\n") is None
    assert read_front_matter("---\ntitle: x\n---\nbody\n") is None


# -- file names ------------------------------------------------------------------------------

HARD = ["../../etc/passwd", "/abs", "C:\\x", "a/b", "..", ".", "", " ", "con", "NUL.txt",
        "a" * 9999,
        "Case", "case", "CASE", "é", "e\u0301", "x.", "x. ", "-", "\x00", "\ud800", "a\nb",
        "case-0123456789ab", "~", "kept"]  # fmt: skip


def test_names_stay_inside_and_never_meet(tmp_path: Path) -> None:
    names = [ledger_name(thread) for thread in HARD]
    assert len({name.lower() for name in names}) == len(HARD)
    for name in names:
        assert (tmp_path / name).parent == tmp_path
        assert len(name) < 100
        assert not name.startswith(".")
        (tmp_path / name).touch()
    assert len(list(tmp_path.iterdir())) == len(HARD)


@given(st.text(max_size=40), st.text(max_size=40))
def test_two_threads_never_share_a_file(one: str, other: str) -> None:
    same = ledger_name(one).lower() == ledger_name(other).lower()
    assert same == (one == other)
    # the name that one thread gets is not the plain name of another
    derived = ledger_name(one).removesuffix(".md")
    assert derived == one or ledger_name(derived) != ledger_name(one)


# -- export ----------------------------------------------------------------------------------


def test_export_creates_the_folder_and_writes_once(tmp_path: Path) -> None:
    exporter = LedgerExporter(tmp_path / "deep" / "ledger")
    result = export(exporter, state(**FULL))
    assert result.error is None
    before = result.path.stat()
    export(exporter, state(**FULL))
    assert result.path.stat().st_mtime_ns == before.st_mtime_ns
    assert result.path.stat().st_ino == before.st_ino
    assert [p.name for p in result.path.parent.iterdir()] == ["migration.md"]
    assert exporter.shows("migration", 23)


def test_many_ledgers_can_be_spread_over_subfolders(tmp_path: Path) -> None:
    exporter = LedgerExporter(tmp_path, spread=True)
    threads = [f"task-{number}" for number in range(40)]
    paths = {exporter.path(thread) for thread in threads}
    assert len(paths) == 40
    assert len({path.parent for path in paths}) > 20
    assert {path.parent.parent for path in paths} == {tmp_path}
    path = export(exporter, state(**FULL)).path
    assert path == exporter.path("migration")
    assert exporter.shows("migration", 23)
    path.write_text(path.read_text() + "- [ ] call Dana\n")
    with pytest.warns(HandoffWarning, match="edited by hand"):
        export(exporter, {**state(**FULL), "revision": 24})
    assert [kept.parent for kept in tmp_path.rglob("*-r23-1.md")] == [tmp_path / "kept"]
    exporter.remove("migration")
    assert not path.exists()


def test_the_file_has_the_mode_that_the_umask_allows(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = export(LedgerExporter(tmp_path), state()).path
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_hand_edited_ledger_is_kept_and_said_so(tmp_path: Path) -> None:
    exporter = LedgerExporter(tmp_path)
    path = export(exporter, state(**FULL)).path
    path.write_text(path.read_text() + "- [ ] call Dana\n")
    newer = {**state(**FULL), "revision": 24}
    with pytest.warns(HandoffWarning, match="edited by hand"):
        export(exporter, newer)
    (kept,) = (tmp_path / "kept").iterdir()
    assert "call Dana" in kept.read_text()
    assert exporter.shows("migration", 24)


def test_a_persons_own_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "migration.md").write_text("# my notes\n")
    with pytest.warns(HandoffWarning, match="kept"):
        export(LedgerExporter(tmp_path), state())
    assert (tmp_path / "kept" / "migration-own-1.md").read_text() == "# my notes\n"


def test_a_ledger_ahead_of_the_database_is_kept(tmp_path: Path) -> None:
    exporter = LedgerExporter(tmp_path)
    export(exporter, {**state(), "revision": 40})
    with pytest.warns(HandoffWarning, match="revision 40"):
        export(exporter, state())
    assert (tmp_path / "kept" / "migration-r40-1.md").exists()
    assert exporter.shows("migration", 23)


def test_another_threads_file_and_a_symlink_are_refused(tmp_path: Path) -> None:
    exporter = LedgerExporter(tmp_path)
    path = exporter.path("migration")
    path.write_text(text_of(state(), "somebody-else"))
    with pytest.warns(HandoffWarning, match="belongs to thread 'somebody-else'"):
        assert export(exporter, state()).error
    path.unlink()
    outside = tmp_path.parent / f"{tmp_path.name}-outside.md"
    path.symlink_to(outside)
    with pytest.warns(HandoffWarning, match="symbolic link"):
        assert export(exporter, state()).error
    assert not outside.exists()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(HandoffWarning, match="behind revision 23"):
        result = export(LedgerExporter(tmp_path / "file" / "ledger"), state())
    assert result.error


def test_a_failing_rename_leaves_the_old_ledger_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = LedgerExporter(tmp_path)
    path = export(exporter, state()).path
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(HandoffWarning, match="No space left"):
        assert export(exporter, {**state(), "revision": 24}).error
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_swept(tmp_path: Path) -> None:
    old = tmp_path / ".migration-1-abcd.tmp"
    new = tmp_path / ".migration-2-abcd.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (1, 1))
    export(LedgerExporter(tmp_path), state())
    assert not old.exists()
    assert new.exists()
