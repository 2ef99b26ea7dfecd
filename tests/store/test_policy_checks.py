"""Every option of a policy is checked before anything is enqueued: in each mode, and by each way to start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dsh_tasks.client import AsyncClient, Start
from dsh_tasks.config import SubagentToolConfig, read_config
from dsh_tasks.errors import ConfigRefused, DshTasksError, InputRefused, LimitReached
from dsh_tasks.provider import Capabilities, Provider, Registry, spawn
from dsh_tasks.settings import Settings
from dsh_tasks.submission import AgentOptions, ToolFilter
from dsh_tasks.tools import Call, SubagentTool
from tests.factories import a_log

MODES = ("foreground", "background")
PARENT = a_log(turns=2)

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a model of white space": ({"agent_options": {"model": " "}}, "agent_options.model"),
    "an empty model": ({"agent_options": {"model": ""}}, "agent_options.model"),
    "a model with a blank in it": ({"agent_options": {"model": "gpt 5"}}, "agent_options.model"),
    "a route without its model": ({"agent_options": {"model": "openai:"}}, "agent_options.model"),
    "a route without its provider": ({"agent_options": {"model": ":gpt"}}, "agent_options.model"),
    "a provider that is a route": ({"agent_options": {"provider": "openai:gpt"}}, "agent_options.provider"),
    "an empty provider": ({"agent_options": {"provider": ""}}, "agent_options.provider"),
    "a model that is endless": ({"agent_options": {"model": "x" * 501}}, "agent_options.model"),
    "no tokens": ({"agent_options": {"maxTokens": 0}}, "agent_options.maxTokens"),
    "half a token": ({"agent_options": {"maxTokens": 0.5}}, "agent_options.maxTokens"),
    "more tokens than there are": ({"agent_options": {"maxTokens": 2**70}}, "agent_options.maxTokens"),
    "an option that there is not": ({"agent_options": {"temperature": 1}}, "agent_options.temperature"),
    "options that are a text": ({"agent_options": "fast"}, "agent_options"),
    "an empty persona": ({"persona": ""}, "persona"),
    "a persona of white space": ({"persona": " \n"}, "persona"),
    "a persona that is none": ({"persona": 5}, "persona"),
    "a persona that is endless": ({"persona": "x" * 65_537}, "persona"),
    "half a character in the persona": ({"persona": "\ud800"}, "persona"),
    "a filter of nothing": ({"tool_filter": {}}, "tool_filter"),
    "a filter of an unknown kind": ({"tool_filter": {"only": ["read"]}}, "tool_filter.only"),
    "a filter that is a list": ({"tool_filter": ["read"]}, "tool_filter"),
    "a filter of one text": ({"tool_filter": {"allow": "read"}}, "tool_filter.allow"),
    "a filter with an empty name": ({"tool_filter": {"deny": [""]}}, "tool_filter.deny.0"),
    "a filter that is endless": ({"tool_filter": {"deny": ["x"] * 1_001}}, "tool_filter.deny"),
    "a life of no time": ({"deadline_ms": 0}, "deadline_ms"),
    "a life of half a millisecond": ({"deadline_ms": 0.5}, "deadline_ms"),
    "a life without an end": ({"deadline_ms": 10**30}, "deadline_ms"),
    "a depth below nothing": ({"max_depth": -1}, "max_depth"),
    "half a depth": ({"max_depth": 1.5}, "policy.max_depth"),
    "a depth that is true": ({"max_depth": True}, "max_depth"),
    "a depth in words": ({"max_depth": "deep"}, "policy.max_depth"),
    "a folder from nowhere": ({"working_folder": "work"}, "working_folder"),
    "an empty folder": ({"working_folder": ""}, "working_folder"),
    "a folder that is a number": ({"working_folder": 7}, "working_folder"),
    "a folder that is endless": ({"working_folder": "/" + "x" * 4_096}, "working_folder"),
    "a cost of nothing": ({"cost_budget": 0}, "cost_budget"),
    "a cost below nothing": ({"cost_budget": -0.5}, "cost_budget"),
    "a cost that is no number": ({"cost_budget": "a dollar"}, "cost_budget"),
    "a cost that is true": ({"cost_budget": True}, "cost_budget"),
    "a cost without an end": ({"cost_budget": float("inf")}, "cost_budget"),
    "a cost of too many places": ({"cost_budget": "0.0000001"}, "cost_budget"),
    "a cost of a country": ({"cost_budget": 10**12}, "cost_budget"),
    "a fence that is no answer": ({"fenced_output": "yes"}, "fenced_output"),
}
SCHEMAS: dict[str, Any] = {
    "a schema that is none": {"type": "nothing"},
    "a schema that reaches outside": {"$ref": "http://elsewhere/x"},
    "a schema without an end": {"$ref": "#"},
    "a schema that is a list": [{"type": "object"}],
    "a schema that is too large": {"description": "x" * 70_000},
}
EVERY = {
    **BAD,
    **{what: ({"output_schema": schema}, "output schema refused") for what, schema in SCHEMAS.items()},
}


async def everything(client: AsyncClient) -> dict[bytes, bytes]:
    """Every key of this installation, its messages included, as it is stored."""
    link = client.store.link
    keys = [key async for key in link.client.scan_iter(match=f"{client.settings.prefix}*")]
    return {key: await link.command("DUMP", key) for key in keys}


async def by_start(client: AsyncClient, mode: str, given: dict[str, Any]) -> DshTasksError | None:
    try:
        await client.start("fork", parent=PARENT, prompt="go", mode=mode, **given)  # type: ignore[arg-type]
    except DshTasksError as error:
        return error
    return None


async def by_start_many(client: AsyncClient, mode: str, given: dict[str, Any]) -> DshTasksError | None:
    asked = Start(provider="fork", prompt="go", mode=mode, **given)  # type: ignore[arg-type]
    (verdict,) = await client.start_many([asked], parent=PARENT)
    return verdict if isinstance(verdict, DshTasksError) else None


async def by_tool(client: AsyncClient, mode: str, given: dict[str, Any]) -> DshTasksError | None:
    """Of a config that was not checked at load: the call checks all the same."""
    config = SubagentToolConfig(provider="fork").model_copy(update=given)
    arguments = {"description": "d", "prompt": "go", "run_in_background": mode == "background"}
    result = await SubagentTool(client, config).call(arguments, Call(session=PARENT))
    if not result.is_error:
        return None
    error = InputRefused(result.value["message"])
    error.code = result.value["code"]  # type: ignore[misc]
    return error


WAYS: dict[str, Callable[..., Any]] = {"start": by_start, "start_many": by_start_many, "tool": by_tool}


@pytest.mark.parametrize("what", EVERY)
def test_what_cannot_be_honoured_is_refused_alike_and_leaves_nothing(settings: Settings, what: str) -> None:
    given, named = EVERY[what]

    async def main() -> None:
        async with AsyncClient.connect(settings, owner="parent") as client:
            before = await everything(client)
            told = set()
            for mode in MODES:
                for way in WAYS.values():
                    error = await way(client, mode, given)
                    assert isinstance(error, InputRefused), (mode, way)
                    assert error.code in ("option_refused", "schema_refused")
                    told.add(error.message)
            (message,) = told
            assert message.startswith(named), message
            assert "\n" not in message
            assert await everything(client) == before

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_what_can_be_honoured_is_accepted_by_each_way_and_kept_alike(settings: Settings, mode: str) -> None:
    given: dict[str, Any] = {
        "agent_options": AgentOptions(provider="openrouter", model="meta/llama:free", max_tokens=77),
        "persona": " You are P. ",
        "tool_filter": ToolFilter(allow=("read", "read"), deny=()),
        "output_schema": {"type": "array"},
        "max_depth": 2,
        "deadline_ms": 60_000,
        "fenced_output": True,
        "working_folder": "/srv/work",
        "cost_budget": 0.1,
    }

    async def main() -> None:
        async with AsyncClient.connect(settings, owner="parent") as client:
            policies = set()
            for number, way in enumerate(WAYS.values(), start=1):
                calling = asyncio.create_task(way(client, mode, given))
                while len(tasks := await client.list_tasks()) < number:
                    await asyncio.sleep(0.01)
                record = (await client.store.read(tasks[-1].id, caller="")).record
                policies.add((record.policy, record.task.mode, record.task.seed_turns))
                if mode == "foreground":
                    calling.cancel()
                    await asyncio.gather(calling, return_exceptions=True)
                else:
                    assert await calling is None
            ((policy, kept_mode, turns),) = policies
            assert (kept_mode, turns) == (mode, 2)
            assert '"model":"meta/llama:free","maxTokens":77' in policy
            assert '"persona":" You are P. "' in policy
            assert '"cost_budget_microusd":100000' in policy

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["both", "", None, 1])
def test_a_mode_is_one_of_two(settings: Settings, mode: Any) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner="parent") as client:
            before = await everything(client)
            for way in (by_start, by_start_many):
                error = await way(client, mode, {})
                assert isinstance(error, InputRefused)
                assert error.facts["option"] == "mode"
            assert await everything(client) == before

    asyncio.run(main())


@pytest.mark.parametrize(
    "given", [{"parent": "a log"}, {"instance": ""}, {"instance": 5}, {"provider": 5}, {"provider": ""}]
)
def test_what_is_no_part_of_the_policy_is_checked_too(settings: Settings, given: dict[str, Any]) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner="parent") as client:
            asked = {"provider": "spawn", "prompt": "go", **given}
            with pytest.raises(InputRefused):
                await client.start(asked.pop("provider"), **asked)
            assert await client.list_tasks() == []

    asyncio.run(main())


BARE = Provider(
    "bare",
    spawn().kind,
    capabilities=Capabilities(output_schema=False, depth_limit=False, tool_filter=False, persona=False),
)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"persona": "P"}, "persona"),
        ({"tool_filter": {"deny": ["x"]}}, "toolFilter"),
        ({"output_schema": {"type": "object"}}, "outputSchema"),
        ({"max_depth": 2}, "maxDepth"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_an_option_that_its_provider_cannot_honour_is_refused_alike(
    settings: Settings, given: dict[str, Any], option: str, mode: str
) -> None:
    async def main() -> None:
        async with AsyncClient.connect(settings, owner="parent", registry=Registry([BARE])) as client:
            before = await everything(client)
            asked: dict[str, Any] = {"max_depth": "provider-managed", **given}
            with pytest.raises(InputRefused, match=f"{option}: provider 'bare' has no capability"):
                await client.start("bare", prompt="go", mode=mode, **asked)  # type: ignore[arg-type]
            assert await everything(client) == before

    asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", ["depth", "live_per_owner", "total_per_tree", "tree_token_budget"])
def test_a_limit_refuses_alike_and_leaves_chunks_that_expire_and_nothing_else(
    make_settings: Callable[..., Settings], limit: str, mode: str, way: str
) -> None:
    knobs = {"live_per_owner": 1, "total_per_tree": 1, "tree_token_budget": 50}

    async def main() -> None:
        settings = make_settings(**({limit: knobs[limit]} if limit in knobs else {}))
        async with AsyncClient.connect(settings, owner="parent") as client:
            first = await client.start("fork", parent=PARENT, prompt="first")
            await client.store.link.command("HSET", client.store.keys.tree("parent"), "committed", 50)
            before = await everything(client)
            error = await WAYS[way](client, mode, {"max_depth": 0} if limit == "depth" else {})
            assert error is not None
            assert error.message.startswith(f"limit {limit} reached: ")
            assert error.code == LimitReached.code
            after = await everything(client)
            for key in after.keys() - before.keys():
                assert await client.store.link.command("PTTL", key) > 0, key
            assert {key: value for key, value in after.items() if key in before} == before
            assert [task.id for task in await client.list_tasks()] == [first.id]

    asyncio.run(main())


def test_a_tree_that_has_tokens_left_starts_children(make_settings: Callable[..., Settings]) -> None:
    async def main() -> None:
        async with AsyncClient.connect(make_settings(tree_token_budget=51), owner="parent") as client:
            await client.start("spawn", prompt="first")
            await client.store.link.command("HSET", client.store.keys.tree("parent"), "committed", 50)
            await client.start("spawn", prompt="second")
            assert len(await client.list_tasks()) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ('persona = "  "', "subagent.persona': it is empty"),
        ('agentOptions = {model = "a b"}', r"tools\[0\].agentOptions.model'"),
        ("agentOptions = {maxTokens = 2147483648}", r"tools\[0\].agentOptions.maxTokens'"),
        ('toolFilter = {deny = [""]}', r"tools\[0\].toolFilter.deny\[0\]'"),
        ("deadlineMs = 999999999999", r"tools\[0\].deadlineMs'"),
        ('outputSchema = {"$ref" = "#"}', "subagent.outputSchema': output schema refused"),
    ],
)
def test_what_an_instance_fixes_is_refused_at_load(option: str, named: str) -> None:
    import tomllib

    with pytest.raises(ConfigRefused, match=named):
        read_config(tomllib.loads(f'[[tools]]\nprovider = "spawn"\n{option}'))
