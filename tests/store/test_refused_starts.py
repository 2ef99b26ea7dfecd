"""What a start cannot honour is refused with a typed error, and then nothing is there."""

from __future__ import annotations

from typing import Any

import pytest

from dsh_tasks.client import Client
from dsh_tasks.errors import ConfigRefused, InputRefused, OptionRefused
from dsh_tasks.queue import Message
from dsh_tasks.session import Header, Session
from dsh_tasks.settings import Settings
from dsh_tasks.store import Keys
from tests.factories import a_log

HALF = "half \ud800 a character"

BAD: dict[str, dict[str, Any]] = {
    "a label that is a number": {"label": 7},
    "a label that is nothing": {"label": None},
    "a label of two megabytes": {"label": "x" * 2_000_000},
    "half a character in the label": {"label": HALF},
    "half a character in the key": {"key": HALF},
    "an empty key": {"key": ""},
    "half a character in the owner": {"owner": HALF},
    "an empty owner": {"owner": ""},
    "half a character in the engine": {"engine": HALF},
    "half a character in the persona": {"persona": HALF},
    "half a character in the prompt": {"prompt": HALF},
    "a prompt of bytes": {"prompt": b"bytes"},
    "no prompt": {"prompt": None},
    "an empty prompt": {"prompt": "  "},
    "a list of texts": {"prompt": ["text"]},
    "blocks that are no JSON": {"prompt": [{"type": "text", "text": "x", "more": object()}]},
    "a tool filter of nothing": {"tool_filter": {}},
    "no positive number of tokens": {"agent_options": {"maxTokens": 0}},
    "an option that there is not": {"agent_options": {"temperature": 1}},
    "a schema that is a list": {"output_schema": [{"type": "array"}]},
    "a schema that is none": {"output_schema": {"type": "nothing"}},
    "a schema without an end": {"output_schema": {"$ref": "#"}},
    "a schema that reaches outside": {"output_schema": {"type": "object", "$ref": "http://elsewhere/x"}},
    "a provider that there is not": {"provider": "acp"},
}


@pytest.mark.parametrize("what", BAD)
def test_a_start_that_cannot_be_honoured_is_refused_and_leaves_nothing(client: Client, what: str) -> None:
    given: dict[str, Any] = {"provider": "spawn", "prompt": "hello"} | BAD[what]
    with pytest.raises(InputRefused) as refused:
        client.start(given.pop("provider"), **given)
    assert "\n" not in str(refused.value)
    assert client.list_tasks() == []


@pytest.mark.parametrize("depth", [-5, 1.5, "1", True, 10**9])
def test_a_header_with_a_forged_depth_is_refused(client: Client, depth: Any) -> None:
    parent = a_log(turns=1)
    forged = Session(Header(4, "forged", 0, delegation_depth=depth), parent.events)
    with pytest.raises(OptionRefused, match="delegationDepth"):
        client.start("spawn", parent=forged, prompt="hello")


def test_an_empty_owner_is_not_the_operator(client: Client, settings: Settings) -> None:
    with pytest.raises(OptionRefused, match="owner"):
        Client(settings, owner="")
    with pytest.raises(OptionRefused, match="owner"):
        client.for_owner("")


@pytest.mark.parametrize("bad", [2**70, 1.5, -1, True])
def test_an_offset_that_is_no_count_is_refused(client: Client, bad: Any) -> None:
    with pytest.raises(OptionRefused, match="offset"):
        client.output("subagent-x", offset=bad)


def test_a_damaged_record_hides_no_other(client: Client, settings: Settings) -> None:
    import redis

    runs = [client.start("spawn", prompt="hello") for _ in range(2)]
    with redis.Redis.from_url(settings.redis_url or "") as raw:
        for damage in ("1e309", "true", "", "nan"):
            raw.hset(Keys(settings.prefix).task(runs[0].id), "depth", damage)
            assert {task.id for task in client.list_tasks()} == {run.id for run in runs}


@pytest.mark.parametrize("url", ["", "http://x", "redis://host:notaport/0", "nonsense"])
def test_a_server_url_that_is_none_is_a_typed_refusal_without_its_text(settings: Settings, url: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        Client(settings.model_copy(update={"redis_url": url}))
    assert "notaport" not in str(refused.value)


@pytest.mark.parametrize("text", ["x" * 10_000, "€" * 10_000, "𝄞" * 10_000, '"\n\t' * 5_000])
def test_a_message_is_small_in_any_script(text: str) -> None:
    import json

    message = Message("subagent-" + "0" * 32, 0, text, "p" * 64, 3, text)
    assert len(json.dumps([message.shown, dict(message.headers)])) < 1_100
    assert "\n" not in message.shown
