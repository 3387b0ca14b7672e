"""What the documents say is true: README code runs, verbs and links exist."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import build, config
from databases import Database
from langchain_core.messages import AIMessage
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

import handoff_graph
from handoff_graph.cli import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
MODULES = sorted(p.stem for p in Path(handoff_graph.__file__).parent.glob("*.py"))


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_readme_code_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Database
) -> None:
    """Each block gets a fresh agent of its reader's; later blocks see earlier names."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"config": config("migration"), "__name__": "readme"}
    ran = 0
    for code in blocks("python"):
        fresh = build(12)
        space |= {
            "builder": fresh,
            "agent": fresh.nodes["agent"].runnable,
            "tools": fresh.nodes["tools"].runnable,
        }
        here = code.replace("postgresql://localhost/agents", postgres.url)
        exec(compile(here, "README.md", "exec"), space)
        ran += 1
    assert ran >= 5
    assert (tmp_path / "ledger" / "migration.md").exists()
    asked = {"name": "ask_for_review", "args": {"table": "users"}, "id": "call-1"}
    (command,) = _in_a_graph(ToolNode([space["ask_for_review"]]), asked)
    task = handoff_graph.merge({}, command["task"])
    assert task["blocked"][0]["needs"] == "a person's review"


def _in_a_graph(node: ToolNode, asked: dict[str, Any]) -> list[dict[str, Any]]:
    builder = StateGraph(handoff_graph.HandoffState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    start = {"messages": [AIMessage("", tool_calls=[asked])]}
    return [builder.compile().invoke(start)]


def test_adding_it_takes_at_most_five_lines() -> None:
    for code in blocks("python")[:2]:
        ours = [line for line in code.splitlines() if re.search("handoff|saver", line, re.I)]
        assert len(ours) <= 5, ours


def test_every_verb_is_documented_and_every_documented_verb_exists() -> None:
    documented = set(re.findall(r"`handoff ([a-z-]+)", README))
    assert documented == set(cli.commands)


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\$ make ([a-z-]+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("name", ["README.md", "docs/how-it-works.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert target.startswith("https://") or (path.parent / target).exists(), target


@pytest.mark.parametrize("module", [m for m in MODULES if m != "__main__"])
def test_docstring_examples_run(module: str) -> None:
    name = "handoff_graph" if module == "__init__" else f"handoff_graph.{module}"
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0


def test_the_demo_runs_and_checks_itself() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "migration" / "demo.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "process killed with SIGKILL" in done.stdout
    assert done.stdout.rstrip().endswith("every step in the ledger")


def test_the_demo_fails_loudly_if_the_constraint_does_not_reach_the_agent(tmp_path: Path) -> None:
    for path in (ROOT / "examples" / "migration").glob("*.py"):
        (tmp_path / path.name).write_text(path.read_text())
    agent = tmp_path / "agent.py"
    code = agent.read_text()
    assert "Do NOT run the cutover script until replication lag is under (" in code
    agent.write_text(code.replace("lag is under (", "lag is anything but ("))
    done = subprocess.run(
        [sys.executable, str(tmp_path / "demo.py")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "the cutover was tried at a lag of" in done.stderr


def test_no_word_of_shell_in_the_readme_is_misquoted() -> None:
    for block in blocks("console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                assert shlex.split(line.removeprefix("$ "), comments=True)
