"""The shape of the package: imports one way, a pure core, exact exports, small modules."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import handoff_graph

PACKAGE = Path(handoff_graph.__file__).parent
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__")

# From the ground up: a module imports only from floors below its own.
FLOORS = [
    {"errors", "steps", "codec", "phrases", "lenient", "identifiers"},
    {"schema", "refusals"},
    {"values"},
    {"task", "binding"},
    {"diff", "transcript", "constraints"},
    {"briefing", "guard", "lifting", "review", "rewriting"},
    {"summarize", "ledger", "journal", "fold"},
    {"prompting", "calling", "sparing"},
    {"answers", "clients"},
    {"replies"},
    {"model"},
    {"channels", "export", "deltas", "dialect", "reader", "encryption", "watch"},
    {"compaction", "milestones", "store", "catalog", "pools", "statements", "verbatim"},
    {"retention", "edits", "sqlite", "postgres", "standing", "console"},
    {"heads", "backends"},
    {"superstep", "threads", "reading"},
    {"mirror", "maintenance", "cli_options"},
    {"upkeep"},
    {"saver", "cli_storage", "cli_tasks"},
    {"export_node", "probing", "cli"},
    {"nodes", "tools"},
    {"wiring", "__main__"},
]
PURE = {
    "errors",
    "steps",
    "codec",
    "lenient",
    "identifiers",
    "constraints",
    "schema",
    "values",
    "task",
    "diff",
    "binding",
    "phrases",
    "briefing",
    "ledger",
}
NO_GRAPH = PURE | {
    "transcript",
    "guard",
    "lifting",
    "review",
    "rewriting",
    "summarize",
    "prompting",
    "answers",
    "replies",
    "calling",
    "clients",
    "model",
    "fold",
    "sparing",
    "journal",
    "catalog",
    "reader",
    "export",
    "standing",
    "dialect",
}


def imports(module: str) -> set[str]:
    """Everything a module imports, also inside functions and under TYPE_CHECKING."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def siblings(module: str) -> set[str]:
    prefix = "handoff_graph."
    return {n.removeprefix(prefix) for n in imports(module) if n.startswith(prefix)} & set(MODULES)


def test_every_module_has_its_floor() -> None:
    assert sorted(name for floor in FLOORS for name in floor) == MODULES


def test_imports_run_in_one_direction() -> None:
    level = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    upward = [
        (module, other)
        for module in MODULES
        for other in siblings(module)
        if level[other] >= level[module]
    ]
    assert upward == []
    TopologicalSorter({module: siblings(module) for module in MODULES}).prepare()


@pytest.mark.parametrize("module", sorted(PURE))
def test_the_core_does_no_io(module: str) -> None:
    roots = {name.split(".")[0] for name in imports(module)}
    assert not roots & {"os", "io", "pathlib", "sqlite3", "tempfile", "langgraph", "click"}


@pytest.mark.parametrize("module", sorted(NO_GRAPH))
def test_langgraph_stays_at_the_edge(module: str) -> None:
    assert not [name for name in imports(module) if name.split(".")[0] == "langgraph"]


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_small_and_documented(module: str) -> None:
    source = (PACKAGE / f"{module}.py").read_text()
    assert len(source.splitlines()) <= 375
    tree = ast.parse(source)
    assert ast.get_docstring(tree)
    for node in public(tree.body):
        assert ast.get_docstring(node), f"{module}.{node.name}"
        for inner in public(node.body) if isinstance(node, ast.ClassDef) else ():
            assert ast.get_docstring(inner), f"{module}.{node.name}.{inner.name}"


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(body: list[ast.stmt]) -> list[Definition]:
    return [n for n in body if isinstance(n, Definition) and not n.name.startswith("_")]


@pytest.mark.parametrize("module", [m for m in MODULES if m != "__main__"])
def test_all_is_exact(module: str) -> None:
    loaded = importlib.import_module(f"handoff_graph.{module}")
    tree = ast.parse((PACKAGE / f"{module}.py").read_text())
    defined = {node.name for node in public(tree.body)}
    listed = set(loaded.__all__)
    assert all(hasattr(loaded, name) for name in listed)
    verbs = {"cli", "list_threads", "show", "resume", "log"} if module == "cli" else set()
    assert defined - verbs <= listed, defined - listed


def test_the_package_exports_what_it_lists() -> None:
    assert handoff_graph.__all__ == sorted(handoff_graph.__all__)
    for name in handoff_graph.__all__:
        assert getattr(handoff_graph, name) is not None
        assert name in dir(handoff_graph)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        handoff_graph.nothing  # noqa: B018
    stub = ast.parse((PACKAGE / "__init__.py").read_text())
    typed = {
        alias.name
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("handoff_graph.")
        for alias in node.names
    }
    assert typed == set(handoff_graph.__all__)


def test_no_export_is_shadowed_by_a_module() -> None:
    """A submodule, once imported, becomes an attribute of the package."""
    assert not set(handoff_graph.__all__) & set(MODULES)


def test_every_error_is_under_one_root() -> None:
    from handoff_graph import errors

    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, (errors.HandoffError, errors.HandoffWarning))
        assert name in errors.__doc__


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import handoff_graph, sys; assert not {'langgraph', 'langchain_core'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
