"""Submission: options at the border; what was left out stays out."""

from __future__ import annotations

from typing import Any

import pytest

from dsh_tasks.errors import OptionRefused
from dsh_tasks.submission import AgentOptions, Policy, Route, ToolFilter, checked


def test_no_agent_options_is_not_the_same_as_empty_ones() -> None:
    assert Policy().agent_options is None
    assert "agent_options" not in Policy().to_json()
    assert Policy(agent_options=AgentOptions()).agent_options == AgentOptions()


def test_a_policy_survives_its_record() -> None:
    policy = Policy(
        agent_options=AgentOptions(model="m", maxTokens=5),
        tool_filter=ToolFilter(allow=("read",)),
        persona="p",
        output_schema={"type": "object", "properties": {"n": {"type": "number"}}},
        max_depth="provider-managed",
        parent_route=Route(provider="p", model="m"),
    )
    assert Policy.from_json(policy.to_json()) == policy


def test_an_empty_persona_survives_its_record() -> None:
    assert Policy.from_json(Policy(persona="").to_json()).persona == ""


@pytest.mark.parametrize(
    ("given", "admitted"),
    [
        ({"deny": ["write"]}, {"read", "shell"}),
        ({"allow": ["read"]}, {"read"}),
        ({"allow": ["read", "write"], "deny": ["write"]}, {"read"}),
        ({"allow": []}, set()),
        ({"deny": []}, {"read", "write", "shell"}),
    ],
)
def test_a_filter_admits_what_it_allows_and_does_not_deny(given: dict[str, Any], admitted: set[str]) -> None:
    wanted = checked(ToolFilter, "toolFilter", given)
    assert {name for name in ("read", "write", "shell") if wanted.admits(name)} == admitted


def test_a_filter_with_only_deny_is_no_allow_list_of_nothing() -> None:
    assert checked(ToolFilter, "toolFilter", {"deny": ["write"]}).allow is None


@pytest.mark.parametrize(
    ("model", "option", "given", "place"),
    [
        (ToolFilter, "toolFilter", {}, "toolFilter"),
        (ToolFilter, "toolFilter", {"allow": [1]}, "toolFilter.allow.0"),
        (ToolFilter, "toolFilter", {"only": ["read"]}, "toolFilter.only"),
        (AgentOptions, "agentOptions", {"maxTokens": 0}, "agentOptions.maxTokens"),
        (AgentOptions, "agentOptions", {"maxTokens": -1}, "agentOptions.maxTokens"),
        (AgentOptions, "agentOptions", {"maxTokens": "9"}, "agentOptions.maxTokens"),
        (AgentOptions, "agentOptions", {"maxTokens": True}, "agentOptions.maxTokens"),
        (AgentOptions, "agentOptions", {"temperature": 1}, "agentOptions.temperature"),
    ],
)
def test_a_wrong_option_is_refused_by_its_path(model: Any, option: str, given: Any, place: str) -> None:
    with pytest.raises(OptionRefused) as caught:
        checked(model, option, given)
    assert caught.value.facts["option"] == place


def test_a_refusal_does_not_repeat_what_was_given() -> None:
    with pytest.raises(OptionRefused) as caught:
        checked(AgentOptions, "agentOptions", {"model": ["sk-secret"]})
    assert "sk-secret" not in caught.value.message
