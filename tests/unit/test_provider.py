"""Providers: what a child starts with, what a provider can honour, and which ones exist."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dsh_tasks import seed
from dsh_tasks.errors import ConfigRefused, OptionRefused
from dsh_tasks.provider import (
    CONTRACT_NAMES,
    Capabilities,
    Kind,
    Provider,
    Registry,
    fork,
    fork_lite,
    of_kind,
    spawn,
)
from dsh_tasks.session import Event, Header, Session
from dsh_tasks.submission import Policy, ToolFilter


def a_log(turns: int, *, open_turn: bool = False) -> Session:
    """Least turns of one step each: a user's message and an answer."""
    rows: list[dict[str, Any]] = []

    def row(type: str, data: dict[str, Any], **more: Any) -> None:
        rows.append({"type": type, "seq": len(rows), "time": 1, "data": data, **more})

    for turn in range(1, turns + 1 + open_turn):
        row("turn/start", {"turn": turn})
        row("step/start", {"turn": turn, "step": 1})
        user = {"role": "user", "content": [{"type": "text", "text": f"q{turn}"}], "id": f"u{turn}"}
        row("user/message", {**user, "source": {"kind": "user"}}, surfaceOp="append")
        message = {
            "role": "assistant",
            "content": [{"type": "text", "text": f"a{turn}"}],
            "source": {"kind": "model", "provider": "p", "model": "m"},
            "id": f"a{turn}",
        }
        row(
            "assistant/message",
            {"turn": turn, "step": 1, "message": message, "stream": []},
            surfaceOp="append",
        )
        if turn <= turns:
            row("step/end", {"turn": turn, "step": 1})
            row("turn/end", {"turn": turn, "reason": {"kind": "completed"}})
    return Session(Header(version=4, id="s", created_at=1), tuple(Event.from_row(row) for row in rows))


# -- what a child starts with -------------------------------------------------------------------


def test_a_spawn_starts_with_nothing() -> None:
    assert spawn().seed_of(a_log(3)) == seed.empty()


def test_a_fork_starts_with_all_completed_turns() -> None:
    log = a_log(3, open_turn=True)
    assert fork().seed_of(log) == seed.cut(log)
    assert fork().seed_of(log) != seed.empty()


def test_a_fork_lite_starts_with_its_window() -> None:
    log = a_log(3, open_turn=True)
    assert fork_lite(max_completed_turns=2).seed_of(log) == seed.window(log, 2)
    assert fork_lite(max_completed_turns=2).seed_of(log) != fork().seed_of(log)


def test_a_window_of_no_turns_is_empty() -> None:
    assert fork_lite(max_completed_turns=0).seed_of(a_log(3)) == seed.empty()


@pytest.mark.parametrize("provider", [spawn(), fork(), fork_lite()], ids=lambda p: p.name)
def test_without_a_parent_every_child_starts_fresh(provider: Provider) -> None:
    assert provider.seed_of(None) == seed.empty()


@pytest.mark.parametrize("provider", [spawn(), fork(), fork_lite()], ids=lambda p: p.name)
def test_taking_a_seed_changes_nothing_and_gives_the_same_each_time(provider: Provider) -> None:
    log = a_log(2)
    before = copy.deepcopy(log)
    assert provider.seed_of(log) == provider.seed_of(log)
    assert log == before


@pytest.mark.parametrize(
    ("provider", "inherits"),
    [(spawn(), False), (fork(), True), (fork_lite(), True), (fork_lite("none", 0), False)],
)
def test_only_what_passes_turns_on_reports_inherited_context(provider: Provider, inherits: bool) -> None:
    assert provider.inherits_parent_context is inherits


# -- what may be named --------------------------------------------------------------------------


def test_the_stock_providers_advertise_what_the_contract_names() -> None:
    advertised = {
        provider.name: {
            name for field, name in CONTRACT_NAMES.items() if getattr(provider.capabilities, field)
        }
        for provider in Registry()
    }
    common = {"outputSchema", "depthLimit", "toolFilter", "persona", "prepareContinuable"}
    assert advertised == {"spawn": common, "fork": common, "fork-lite": common | {"agentOptions"}}


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "ä", "x" * 65, "a/b"])
def test_a_provider_needs_a_plain_name(name: str) -> None:
    with pytest.raises(ConfigRefused, match="a provider's name is"):
        Provider(name, Kind.SPAWN)


def test_a_window_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(ConfigRefused, match="'x': maxCompletedTurns has no meaning for kind 'fork'"):
        of_kind(Kind.FORK, "x", 2)


@pytest.mark.parametrize("turns", [None, -1])
def test_a_fork_lite_needs_a_window_from_zero(turns: int | None) -> None:
    with pytest.raises(ConfigRefused, match="a fork-lite needs maxCompletedTurns, 0 or more"):
        Provider("x", Kind.FORK_LITE, turns)


def test_a_fork_lite_that_does_not_say_keeps_two_turns() -> None:
    assert of_kind(Kind.FORK_LITE, "x").max_completed_turns == 2


# -- the registry -------------------------------------------------------------------------------


def test_the_default_registry_holds_the_three_stock_providers_in_order() -> None:
    assert [provider.name for provider in Registry()] == ["spawn", "fork", "fork-lite"]


def test_several_windows_stand_side_by_side() -> None:
    registry = Registry([fork_lite("two", 2), fork_lite("five", 5)])
    assert [registry.get(name).max_completed_turns for name in ("two", "five")] == [2, 5]


def test_two_providers_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigRefused, match="'spawn': two providers have this name"):
        Registry().register(spawn())


def test_an_unknown_provider_is_refused_at_start_and_the_refusal_names_what_exists() -> None:
    with pytest.raises(OptionRefused) as caught:
        Registry().check_start("forc", Policy())
    assert caught.value.message == (
        "provider: there is no provider 'forc'; there are: 'spawn', 'fork', 'fork-lite'"
    )


def test_an_empty_registry_says_that_there_is_none() -> None:
    with pytest.raises(OptionRefused, match="there are: none"):
        Registry([]).get("spawn")


def test_a_provider_may_vanish_and_come_back() -> None:
    registry = Registry()
    gone = registry.withdraw("fork")
    assert "fork" not in registry
    with pytest.raises(OptionRefused):
        registry.check_start("fork", Policy())
    registry.register(gone)
    assert registry.check_start("fork", Policy()) == gone


def test_withdrawing_what_is_not_there_is_refused() -> None:
    with pytest.raises(OptionRefused, match="there is no provider 'x'"):
        Registry().withdraw("x")


# -- capabilities at start ----------------------------------------------------------------------

ASKED = {
    "output_schema": (Policy(output_schema={"type": "object"}), "outputSchema", "outputSchema"),
    "tool_filter": (Policy(tool_filter=ToolFilter(deny=("x",))), "toolFilter", "toolFilter"),
    "persona": (Policy(persona="p"), "persona", "persona"),
    "depth_limit": (Policy(max_depth=0), "maxDepth", "depthLimit"),
}


def bare(**capabilities: bool) -> Registry:
    return Registry([Provider("bare", Kind.SPAWN, capabilities=Capabilities(**capabilities))])


@pytest.mark.parametrize("field", ASKED)
def test_an_option_without_its_capability_is_refused_by_its_name(field: str) -> None:
    asked, option, capability = ASKED[field]
    with pytest.raises(OptionRefused) as caught:
        bare(**{field: False}).check_start("bare", asked)
    assert caught.value.facts["option"] == option
    assert f"provider 'bare' has no capability {capability}" in caught.value.message


@pytest.mark.parametrize("field", ASKED)
def test_an_option_with_its_capability_passes(field: str) -> None:
    assert bare().check_start("bare", ASKED[field][0]).name == "bare"


def test_the_default_cap_is_numeric_and_needs_the_capability_too() -> None:
    with pytest.raises(OptionRefused, match="cannot enforce a numeric cap; say 'provider-managed'"):
        bare(depth_limit=False).check_start("bare", Policy())


def test_a_provider_managed_cap_needs_no_capability() -> None:
    assert bare(depth_limit=False).check_start("bare", Policy(max_depth="provider-managed"))


def test_a_continuable_child_needs_its_capability() -> None:
    with pytest.raises(OptionRefused, match="no capability prepareContinuable"):
        bare(prepare_continuable=False).check_start("bare", Policy(), continuable=True)
    assert bare(prepare_continuable=False).check_start("bare", Policy())


def test_what_is_left_out_asks_for_no_capability() -> None:
    registry = bare(output_schema=False, tool_filter=False, persona=False, depth_limit=False)
    assert registry.check_start("bare", Policy(max_depth="provider-managed"))
