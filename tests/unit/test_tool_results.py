"""Results of tools are bounded: what a model reads of a large one, and what it is told of the rest."""

from __future__ import annotations

import re

import pytest

from dsh_tasks.config import read_config
from dsh_tasks.errors import ConfigRefused
from tests.fake_run import a_child, a_tool, run_child
from workers.engines.agent.capping import capped
from workers.engines.agent.engine import AgentEngine
from workers.engines.base import ToolAnswer

MARK = re.compile(r"\n\[result cut: (\d+) of (\d+) bytes shown\]$")


@pytest.mark.parametrize("text", ["a", "é", "語", "🙂"])
@pytest.mark.parametrize("over", range(5))
def test_a_result_is_cut_on_a_character_and_says_what_was_there(text: str, over: int) -> None:
    whole = "x" * over + text * 2_000
    shown = capped(ToolAnswer(whole, is_error=True), 1_024)
    assert shown.is_error
    assert 1_018 < len(shown.text.encode()) <= 1_024
    mark = MARK.search(shown.text)
    assert mark is not None
    kept = shown.text[: mark.start()]
    assert whole.startswith(kept)
    assert [int(number) for number in mark.groups()] == [len(kept.encode()), len(whole.encode())]


def test_a_result_of_exactly_the_limit_is_whole() -> None:
    for text in ("x" * 1_024, "é" * 512):
        assert capped(ToolAnswer(text), 1_024).text == text


def test_half_a_character_of_a_tool_is_counted_as_it_is_written() -> None:
    assert MARK.search(capped(ToolAnswer("\ud800" * 5_000), 1_024).text)


def of_size(size: int) -> str:
    """So many letters."""
    return "x" * size


async def failing(size: int) -> None:
    """Raises so many letters."""
    raise ValueError("x" * size)


@pytest.mark.parametrize("name", ["of_size", "failing"])
@pytest.mark.parametrize("path", [True, False])
def test_results_and_faults_of_python_tools_are_capped(name: str, path: bool) -> None:
    tool = f"{__name__}:{name}" if path else globals()[name]
    _, run = run_child(AgentEngine([tool], result_bytes=2_048), a_child(f'!call {name} {{"size": 9000}}'))
    text = run.row("tool/result")["message"]["content"][0]["text"]
    assert len(text) <= 2_048
    assert MARK.search(text)


def test_a_tool_of_the_place_bounds_itself() -> None:
    """Delegation has caps of its own and pages behind them."""
    tools = [a_tool(call=lambda _: "x" * 9_000)]
    _, run = run_child(AgentEngine(result_bytes=2_048), a_child("!call echo"), tools)
    assert len(run.row("tool/result")["message"]["content"][0]["text"]) == 9_000


def test_the_cap_is_a_line_of_the_settings_file() -> None:
    assert read_config({}).agent.tool_result_bytes == 65_536
    assert read_config({"agent": {"toolResultBytes": 4_096}}).agent.tool_result_bytes == 4_096
    for refused in (0, 1_023, 64 * 2**20, "many"):
        with pytest.raises(ConfigRefused, match="toolResultBytes"):
            read_config({"agent": {"toolResultBytes": refused}})
