"""Writing ledger files: atomically, only inside their folder, never over a person's edit."""

from __future__ import annotations

import glob
import hashlib
import os
import secrets
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handoff_graph.errors import HandoffWarning, LedgerError
from handoff_graph.ledger import FrontMatter, ledger_name, read_front_matter, render_ledger

__all__ = ["Exported", "LedgerExporter"]

_ABANDONED = 60  # seconds after which a temporary file has no writer any more


@dataclass(frozen=True)
class Exported:
    """What became of one export."""

    path: Path
    error: str | None = None
    """Why the ledger could not be written; None if it shows this revision or a newer one."""


class LedgerExporter:
    """Mirrors task states into a folder, one markdown file per thread.

    A file is written beside its place, flushed to disk and renamed over it, so that a reader
    or a crash sees the old ledger or the new one, whole. A ledger that a person has edited, or
    that is ahead of the database, is moved into the subfolder `kept` first, and said so:
    words are never overwritten.

    Args:
        folder: where the ledgers go; created when needed.
        spread: put them into 256 subfolders, by a hash of their names: with many thousands of
            threads a single folder gets slow, to write into and to look at.

    Example:
        >>> LedgerExporter("ledger", spread=True).path("migration-postgres-west").as_posix()
        'ledger/2e/migration-postgres-west.md'
    """

    def __init__(self, folder: str | Path, *, spread: bool = False) -> None:
        self.folder = Path(folder)
        self.spread = spread
        self._swept: set[Path] = set()

    def path(self, thread: str) -> Path:
        """The ledger file of a thread, whether it exists or not."""
        name = ledger_name(thread)
        prefix = hashlib.sha256(name.encode()).hexdigest()[:2] if self.spread else ""
        return self.folder / prefix / name

    def remove(self, thread: str) -> None:
        """Delete the thread's ledger, if there is one. What was put aside in `kept` stays."""
        self.path(thread).unlink(missing_ok=True)

    def read(self, thread: str) -> FrontMatter | None:
        """What the thread's ledger says of itself; None if there is none to be read."""
        try:
            return read_front_matter(self.path(thread).read_text("utf-8", "replace"))
        except OSError:
            return None

    def shows(self, thread: str, revision: int) -> bool:
        """Whether the thread's ledger is there, unedited, and shows this revision."""
        front = self.read(thread)
        return front is not None and front.intact and front.revision == revision

    def export(
        self, state: Mapping[str, Any], *, thread: str, checkpoint: str, at: str
    ) -> Exported:
        """Write the ledger of one revision; failures are reported, never raised.

        Args:
            state: the task state.
            thread: the thread id.
            checkpoint: the checkpoint id that the revision was written with.
            at: the stamp of the revision.

        Returns:
            The path, and the error if there was one (also issued as a `HandoffWarning`).
        """
        path = self.path(thread)
        text = render_ledger(state, thread=thread, checkpoint=checkpoint, updated=at)
        try:
            self._write(path, text, thread, int(state["revision"]))
        except (OSError, LedgerError) as error:
            reason = str(error)
            warnings.warn(
                f"the ledger of thread {thread!r} is behind revision {state['revision']}: {reason}",
                HandoffWarning,
                stacklevel=3,
            )
            return Exported(path, reason)
        return Exported(path)

    def _write(self, path: Path, text: str, thread: str, revision: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            raise LedgerError(str(path), "it is a symbolic link; remove it, or move the folder")
        if path.exists():
            there = path.read_bytes()
            if there == text.encode("utf-8"):
                return
            front = read_front_matter(there.decode("utf-8", "replace"))
            if front is not None and front.thread not in (None, thread):
                raise LedgerError(str(path), f"it belongs to thread {front.thread!r}; move it away")
            if front is None or not front.intact:
                self._set_aside(path, front, "it had been edited by hand")
            elif front.revision is not None and front.revision > revision:
                newer = f"it shows revision {front.revision}, the database only has {revision}"
                self._set_aside(path, front, newer)
        _replace(path, text)
        if path not in self._swept:  # a look through the folder: once for each ledger
            self._swept.add(path)
            _sweep(path)

    def _set_aside(self, path: Path, front: FrontMatter | None, reason: str) -> None:
        folder = self.folder / "kept"
        folder.mkdir(exist_ok=True)
        label = f"r{front.revision}" if front and front.revision is not None else "own"
        number = 1
        while (aside := folder / f"{path.stem}-{label}-{number}{path.suffix}").exists():
            number += 1
        os.rename(path, aside)
        warnings.warn(
            f"the ledger {path} was kept as {aside} before a new one was written: {reason}",
            HandoffWarning,
            stacklevel=5,
        )


def _replace(path: Path, text: str) -> None:
    temporary = path.parent / f".{path.stem[:40]}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        # Opened with the usual mode, so that the ledger gets what the umask allows.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _sweep(path: Path) -> None:
    """Remove what a writer killed in mid-export has left behind."""
    for stale in path.parent.glob(f".{glob.escape(path.stem[:40])}-*.tmp"):
        with suppress(OSError):
            if time.time() - stale.stat().st_mtime > _ABANDONED:
                stale.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # a directory cannot be opened there
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
