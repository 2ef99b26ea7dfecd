"""The settings file: what it makes, and every misconfiguration refused at load, by name."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from dsh_tasks.config import AgentConfig, Config, SubagentToolConfig, load_config, read_config
from dsh_tasks.errors import ConfigRefused
from dsh_tasks.provider import Capabilities, Kind, Provider, Registry
from dsh_tasks.settings import Settings
from dsh_tasks.submission import AgentOptions, ToolFilter

EXAMPLE = Path(__file__).parents[2] / "dsh-tasks.example.toml"


def read(text: str) -> Config:
    return read_config(tomllib.loads(text))


def named(config: Config) -> dict[str, str]:
    return {tool.tool_name: tool.provider for tool in config.tools}


# -- what a file makes --------------------------------------------------------------------------


def test_without_a_file_there_is_one_tool_for_each_stock_provider() -> None:
    config = load_config(settings=Settings(config=None))
    assert named(config) == {"subagent": "spawn", "subagent_fork": "fork", "subagent_fork_lite": "fork-lite"}
    assert config.agent == AgentConfig()


def test_a_tool_says_nothing_but_its_provider() -> None:
    [tool] = read('[[tools]]\nprovider = "spawn"').tools
    assert tool == SubagentToolConfig(provider="spawn")
    assert (tool.tool_name, tool.enable_run_in_background, tool.background_mode) == (
        "subagent",
        True,
        "one-shot",
    )
    assert (tool.max_depth, tool.partial_output_in_errors, tool.overlapping_calls) == (3, False, False)
    assert (tool.agent_options, tool.tool_filter, tool.persona, tool.output_schema) == (
        None,
        None,
        None,
        None,
    )


def test_rows_of_providers_stand_beside_the_stock_ones_and_get_a_tool_each() -> None:
    config = read('[[providers]]\nname = "wide.one"\nkind = "fork-lite"\nmaxCompletedTurns = 5')
    assert [provider.name for provider in config.registry] == ["spawn", "fork", "fork-lite", "wide.one"]
    assert named(config)["subagent_wide_one"] == "wide.one"
    assert config.registry.get("wide.one").max_completed_turns == 5


def test_a_row_with_a_stock_name_takes_its_place() -> None:
    config = read('[[providers]]\nname = "fork-lite"\nkind = "fork-lite"\nmaxCompletedTurns = 9')
    assert [provider.name for provider in config.registry] == ["spawn", "fork", "fork-lite"]
    assert config.registry.get("fork-lite").max_completed_turns == 9


def test_every_option_of_a_tool_is_read() -> None:
    [tool] = read(
        """
        [[tools]]
        provider = "fork"
        toolName = "critic"
        description = "d"
        enableRunInBackground = false
        backgroundMode = "one-shot"
        persona = "p"
        maxDepth = "provider-managed"
        partialOutputInErrors = true
        overlappingCalls = true
        fencedOutput = true
        workingFolder = "/srv/work"
        costBudget = "0.50"
        agentOptions = {provider = "a", model = "m", maxTokens = 5}
        toolFilter = {allow = ["read"], deny = []}
        outputSchema = {type = "object"}
        """
    ).tools
    assert tool == SubagentToolConfig(
        provider="fork",
        tool_name="critic",
        description="d",
        enable_run_in_background=False,
        persona="p",
        max_depth="provider-managed",
        partial_output_in_errors=True,
        overlapping_calls=True,
        fenced_output=True,
        working_folder="/srv/work",
        cost_budget="0.50",
        agent_options=AgentOptions(provider="a", model="m", max_tokens=5),
        tool_filter=ToolFilter(allow=("read",), deny=()),
        output_schema={"type": "object"},
    )


def test_a_tools_policy_leaves_out_what_the_file_left_out() -> None:
    [tool] = read('[[tools]]\nprovider = "spawn"\ntoolFilter = {deny = ["x"]}').tools
    assert json.loads(tool.policy().to_json()) == {"tool_filter": {"deny": ["x"]}, "max_depth": 3}


@pytest.mark.parametrize("given", ["0.5", '"0.50"', "1"])
def test_a_budget_of_costs_is_kept_in_whole_micro_dollars(given: str) -> None:
    [tool] = read(f'[[tools]]\nprovider = "spawn"\ncostBudget = {given}').tools
    assert tool.policy().cost_budget_microusd in (500_000, 1_000_000)


@pytest.mark.parametrize("given", ["0", "-1", '"much"', "0.0000001"])
def test_a_budget_of_costs_that_is_none_is_refused_at_load(given: str) -> None:
    with pytest.raises(ConfigRefused, match=r"subagent.costBudget.*US dollars above 0"):
        read(f'[[tools]]\nprovider = "spawn"\ncostBudget = {given}')


def test_prices_of_models_are_in_the_file_and_each_once() -> None:
    row = '[[agent.prices]]\nmodel = "x:y"\ninput = 0.5\noutput = 2\n'
    [price] = read(row + "cacheRead = 0.05").agent.prices
    assert (price.model, price.input, price.output, price.cache_read, price.cache_write) == (
        "x:y",
        0.5,
        2,
        0.05,
        None,
    )
    with pytest.raises(ConfigRefused, match=r"agent.prices.*'x:y' has two prices"):
        read(row * 2)
    with pytest.raises(ConfigRefused, match=r"agent.prices\[0\].input"):
        read(row.replace("0.5", "-1"))


def test_no_rows_of_tools_is_not_an_empty_list_of_them() -> None:
    assert len(read("").tools) == 3
    assert read("tools = []").tools == ()


def test_the_example_loads_and_shows_what_its_comments_say() -> None:
    config = load_config(EXAMPLE, settings=Settings())
    assert named(config) == {"subagent": "spawn", "critic": "fork-lite-5"}
    assert config.tools[1].tool_filter == ToolFilter(deny=("subagent",))


def test_every_commented_option_of_the_example_loads_too() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    text, _, agent = text.partition("[agent]\n")
    agent, _, workspace = agent.partition("# [agent.workspace]")
    of_tools, of_agent, of_workspace = (
        [line for line in part.splitlines() if line.startswith("# ") and " = " in line]
        for part in (text, agent, workspace)
    )
    assert (len(of_tools), len(of_agent), len(of_workspace)) == (12, 4, 6)
    for line in of_workspace:
        assert read(f"[agent.workspace]\n{line[2:]}").agent.workspace
    for line in of_agent:
        assert read(f"[agent]\n{line[2:]}").agent
    for line in of_tools:
        # The bending options stand below the sub-tables in the text, but belong to the tool.
        table = "[tools.agentOptions]" if line.startswith(("# provider", "# model")) else ""
        options = f'[[tools]]\nprovider = "spawn"\n{table}\n{line[2:]}'
        assert read(options).tools


def test_the_file_is_found_by_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "dsh.toml"
    path.write_text('[[tools]]\nprovider = "fork"', encoding="utf-8")
    assert named(load_config(None, settings=Settings(config=str(path)))) == {"subagent": "fork"}


def test_a_path_goes_before_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "dsh.toml"
    path.write_text('[[tools]]\nprovider = "fork"', encoding="utf-8")
    assert named(load_config(path, settings=Settings(config="nowhere.toml"))) == {"subagent": "fork"}


# -- what is refused ----------------------------------------------------------------------------

REFUSED = {
    "unknown provider": (
        '[[tools]]\nprovider = "forc"',
        "configuration of 'subagent.provider': there is no provider 'forc'; "
        "there are: 'spawn', 'fork', 'fork-lite'",
    ),
    "no provider": ('[[tools]]\ntoolName = "x"', "configuration of 'tools[0].provider': is required"),
    "two tools of one name": (
        '[[tools]]\nprovider = "spawn"\n[[tools]]\nprovider = "fork"',
        "configuration of 'subagent': two tools have this name; give each one of its own",
    ),
    "two providers of one name": (
        '[[providers]]\nname = "a"\nkind = "fork"\n[[providers]]\nname = "a"\nkind = "spawn"',
        "configuration of 'a': two providers have this name",
    ),
    "two default names that coincide": (
        '[[providers]]\nname = "a-b"\nkind = "fork"\n[[providers]]\nname = "a.b"\nkind = "spawn"',
        "configuration of 'subagent_a_b': two tools have this name; give each one of its own",
    ),
    "name of a task tool": (
        '[[tools]]\nprovider = "spawn"\ntoolName = "task_kill"',
        "configuration of 'task_kill': a task tool has this name; choose another",
    ),
    "name that no model takes": (
        '[[tools]]\nprovider = "spawn"\ntoolName = "sub agent"',
        "configuration of 'sub agent': a tool's name is 1 to 64 letters, digits, - or _",
    ),
    "agent tool with the name of a delegation tool": (
        '[agent]\ntools = ["mine:subagent"]',
        "configuration of 'subagent': two tools have this name; give each one of its own",
    ),
    "agent tool with the name of a task tool": (
        '[agent]\ntools = ["mine:task_list"]',
        "configuration of 'task_list': a task tool has this name; choose another",
    ),
    "filter of nothing": (
        '[[tools]]\nprovider = "spawn"\ntoolFilter = {}',
        "configuration of 'tools[0].toolFilter': a tool filter must name allow or deny",
    ),
    "filter that is no list": (
        '[[tools]]\nprovider = "spawn"\ntoolFilter = {allow = "read"}',
        "configuration of 'tools[0].toolFilter.allow': should be a list",
    ),
    "no tokens": (
        '[[tools]]\nprovider = "spawn"\nagentOptions = {maxTokens = 0}',
        "configuration of 'tools[0].agentOptions.maxTokens': input should be greater than 0",
    ),
    "negative depth": (
        '[[tools]]\nprovider = "spawn"\nmaxDepth = -1',
        "configuration of 'tools[0].maxDepth': should be a whole number from 0, or 'provider-managed'",
    ),
    "depth that is a boolean": (
        '[[tools]]\nprovider = "spawn"\nmaxDepth = true',
        "configuration of 'tools[0].maxDepth': should be a whole number from 0, or 'provider-managed'",
    ),
    "unknown option": (
        '[[tools]]\nprovider = "spawn"\ncolour = "red"',
        "configuration of 'tools[0].colour': there is no such option",
    ),
    "option in Python's spelling": (
        '[[tools]]\nprovider = "spawn"\ntool_name = "x"',
        "configuration of 'tools[0].tool_name': there is no such option",
    ),
    "unknown agent option": (
        '[[tools]]\nprovider = "spawn"\nagentOptions = {max_tokens = 5}',
        "configuration of 'tools[0].agentOptions.max_tokens': there is no such option",
    ),
    "unknown table": ("[tool]\nx = 1", "configuration of 'tool': there is no such option"),
    "unknown key of a provider": (
        '[[providers]]\nname = "a"\nkind = "fork"\nturns = 2',
        "configuration of 'providers[0].turns': there is no such option",
    ),
    "unknown kind": (
        '[[providers]]\nname = "a"\nkind = "clone"',
        "configuration of 'providers[0].kind': input should be 'spawn', 'fork' or 'fork-lite'",
    ),
    "window of a fork": (
        '[[providers]]\nname = "a"\nkind = "fork"\nmaxCompletedTurns = 2',
        "configuration of 'a': maxCompletedTurns has no meaning for kind 'fork'",
    ),
    "negative window": (
        '[[providers]]\nname = "a"\nkind = "fork-lite"\nmaxCompletedTurns = -1',
        "configuration of 'providers[0].maxCompletedTurns': input should be greater than or equal to 0",
    ),
    "empty persona": (
        '[[tools]]\nprovider = "spawn"\npersona = ""',
        "configuration of 'tools[0].persona': is empty",
    ),
    "continuable children": (
        '[[tools]]\nprovider = "spawn"\nbackgroundMode = "continuable"',
        "configuration of 'subagent.backgroundMode': continuable children are not built yet; say 'one-shot'",
    ),
    "notices of continuable children": (
        '[[tools]]\nprovider = "spawn"\ncontinuableNotices = true',
        "configuration of 'tools[0].continuableNotices': comes with continuable children, which are not built yet",
    ),
    "fence": (
        '[[tools]]\nprovider = "spawn"\nfencedOutput = 1',
        "configuration of 'tools[0].fencedOutput': input should be a valid boolean",
    ),
    "promotion": (
        '[[tools]]\nprovider = "spawn"\npromoteForegroundAfterMs = 0',
        "configuration of 'tools[0].promoteForegroundAfterMs': input should be greater than or equal to 1",
    ),
    "window that the model chooses": (
        '[[tools]]\nprovider = "spawn"\nforkTurns = true',
        "configuration of 'tools[0].forkTurns': a window that the model chooses is not built yet; "
        "name one provider for each window",
    ),
    "agent tool that is no path": (
        '[agent]\ntools = ["read"]',
        "configuration of 'agent.tools': 'read' is not of the form 'module:callable'",
    ),
    "tools that are no list": ('tools = "subagent"', "configuration of 'tools': should be a list"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_misconfiguration_is_refused_at_load_by_name(fault: str) -> None:
    text, sentence = REFUSED[fault]
    with pytest.raises(ConfigRefused) as caught:
        read(text)
    assert caught.value.message == sentence


def test_a_time_for_foreground_calls_needs_a_background() -> None:
    text = '[[tools]]\nprovider = "spawn"\npromoteForegroundAfterMs = 500\n'
    assert read(text).tools[0].promote_foreground_after_ms == 500
    with pytest.raises(ConfigRefused, match="promoteForegroundAfterMs': it makes background tasks"):
        read(f"{text}enableRunInBackground = false")


def test_the_repair_turns_of_a_structured_output_are_set_for_the_agent() -> None:
    assert read("").agent.structured_repair_turns == 1
    assert read("[agent]\nstructuredRepairTurns = 0").agent.structured_repair_turns == 0
    with pytest.raises(ConfigRefused, match=r"agent\.structuredRepairTurns"):
        read("[agent]\nstructuredRepairTurns = 11")


@pytest.mark.parametrize(
    "text",
    [
        '[[tools]]\nprovider = "spawn"\ntoolName = "structured_output"',
        '[agent]\ntools = ["my.tools:structured_output"]',
    ],
)
def test_the_tool_that_children_end_by_keeps_its_name(text: str) -> None:
    with pytest.raises(ConfigRefused, match="children end by the tool of this name"):
        read(text)


@pytest.mark.parametrize(
    "schema", ['{type = "objekt"}', '{type = "array", items = 3}', '{type = "object", "$ref" = "x.json"}']
)
def test_an_output_schema_outside_the_supported_subset_is_refused_at_load(schema: str) -> None:
    with pytest.raises(ConfigRefused, match=r"'subagent\.outputSchema': output schema refused at \$"):
        read(f'[[tools]]\nprovider = "spawn"\noutputSchema = {schema}')


@pytest.mark.parametrize(
    ("config", "lacking", "sentence"),
    [
        ({"persona": "p"}, "persona", "'x.persona': provider 'bare' has no capability persona"),
        (
            {"tool_filter": ToolFilter(deny=("a",))},
            "tool_filter",
            "'x.toolFilter': provider 'bare' has no capability toolFilter",
        ),
        (
            {"output_schema": {"type": "object"}},
            "output_schema",
            "'x.outputSchema': provider 'bare' has no capability outputSchema",
        ),
        (
            {"max_depth": 2},
            "depth_limit",
            "'x.maxDepth': provider 'bare' has no capability depthLimit and cannot enforce a numeric cap; "
            "say 'provider-managed'",
        ),
        (
            {"background_mode": "continuable"},
            "prepare_continuable",
            "'x.backgroundMode': provider 'bare' has no capability prepareContinuable and cannot start "
            "continuable children; say 'one-shot'",
        ),
    ],
)
def test_an_option_without_its_capability_is_refused_at_load(
    config: dict[str, object], lacking: str, sentence: str
) -> None:
    registry = Registry([Provider("bare", Kind.SPAWN, capabilities=Capabilities(**{lacking: False}))])
    with pytest.raises(ConfigRefused) as caught:
        Config(registry, (SubagentToolConfig(provider="bare", tool_name="x", **config),))
    assert caught.value.message == f"configuration of {sentence}"


def test_a_provider_that_enforces_no_cap_mounts_when_its_depth_is_its_own_business() -> None:
    registry = Registry([Provider("bare", Kind.SPAWN, capabilities=Capabilities(depth_limit=False))])
    tool = SubagentToolConfig(provider="bare", max_depth="provider-managed")
    assert Config(registry, (tool,)).tools == (tool,)


def test_a_missing_file_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigRefused, match=r"nowhere\.toml': the settings file cannot be read: No such file"
    ):
        load_config(tmp_path / "nowhere.toml", settings=Settings())


def test_a_file_that_is_no_toml_is_refused_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "dsh.toml"
    path.write_text("[[tools]\n", encoding="utf-8")
    with pytest.raises(ConfigRefused, match=r"dsh\.toml': no valid TOML: .*line 1"):
        load_config(path, settings=Settings())


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dsh.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigRefused, match="is not UTF-8"):
        load_config(path, settings=Settings())


# -- tools of the agent engine ------------------------------------------------------------------


def test_agent_tools_are_imported_only_when_a_worker_asks() -> None:
    agent = read('[agent]\ntools = ["no.such.module:tool"]').agent
    with pytest.raises(ConfigRefused, match=r"'no\.such\.module:tool' does not import"):
        agent.load_tools()


def test_an_agent_tool_is_the_callable_that_its_path_names() -> None:
    assert AgentConfig(tools=("json:dumps",)).load_tools() == [json.dumps]


@pytest.mark.parametrize("path", ["json:nothing", "json:__name__"])
def test_what_is_no_callable_is_no_agent_tool(path: str) -> None:
    with pytest.raises(ConfigRefused, match="is not a callable"):
        AgentConfig(tools=(path,)).load_tools()
