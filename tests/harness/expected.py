"""What a child's model must be asked: an independent fold of the parent's turns, in the shape of a request.

Written from the format alone (docs/format.md); shares no code with dsh_tasks. A history is a list of
(role, blocks): what is said by one role in a row is one entry, as it is on the wire.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.independent_fold import completed_turns, live_places

Row = Mapping[str, Any]
Block = tuple[Any, ...]
History = list[tuple[str, list[Block]]]

UNKNOWN = ("text", "(outcome unknown)")
"""Stands for whatever words say that no result of a call was recorded."""
CONTEXTS = ("Current runtime context.", "<system-reminder>")
"""How messages of the runtime itself begin that follow a prompt."""


def history_of(rows: Sequence[Row], turns: int | None) -> History:
    """What a fork (`turns` None) or a window of `turns` shows a model, the system text left out."""
    live = _live(rows, turns)
    return merged(_said(message) for message in _paired(live))


def _live(rows: Sequence[Row], turns: int | None) -> list[dict[str, Any]]:
    """The live messages of the kept turns, in order."""
    spans = completed_turns(rows)
    if turns == 0 or not spans:
        return []
    first = 0 if turns is None or turns >= len(spans) else spans[-turns][0]
    completed = rows[: spans[-1][1] + 1]
    out: dict[int, set[int]] = {}
    for row in completed:
        if row["type"] == "image/offload":
            for target in row["data"]["targets"]:
                out.setdefault(target["seq"], set()).update(target["imageIndexes"])
    return [
        _message(rows[place], out.get(place, set())) for place in live_places(completed) if place >= first
    ]


def _message(row: Row, offloaded: set[int]) -> dict[str, Any]:
    message = row["data"] if row["type"] == "user/message" else row["data"]["message"]
    blocks, image = [], -1
    for block in message["content"]:
        image += block["type"] == "image"
        is_out = block["type"] == "image" and image in offloaded
        blocks.append({**block, "offloaded": True} if is_out else block)
    return {**message, "content": blocks}


def _paired(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each answer followed by one result for each of its calls; other results are not said."""
    out: list[Mapping[str, Any]] = []
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            continue
        out.append(message)
        if message["role"] != "assistant":
            continue
        calls = [block["id"] for block in message["content"] if block["type"] == "tool-call"]
        results: dict[str, Mapping[str, Any]] = {}
        for later in messages[place + 1 :]:
            if later["role"] == "assistant":
                break
            if later["role"] == "tool" and later["toolCallId"] in calls:
                results.setdefault(later["toolCallId"], later)
        out += results.values()
        out += [_unknown(call) for call in calls if call not in results]
    return out


def _unknown(call: str) -> Mapping[str, Any]:
    return {"role": "tool", "toolCallId": call, "isError": True, "content": [{"type": "unknown"}]}


def _said(message: Mapping[str, Any]) -> tuple[str, list[Block]]:
    replayed = message.get("source", {}).get("replayState", {}).get("blocks", ())
    blocks = [
        block
        for place, raw in enumerate(message["content"])
        for block in _block(raw, replayed[place] if place < len(replayed) else {})
    ]
    if message["role"] == "tool":
        error = bool(message.get("isError", False))
        return ("user", [("result", message["toolCallId"], error, tuple(blocks))])
    return ("system" if message["role"] in ("system", "developer") else message["role"], blocks)


def _block(block: Mapping[str, Any], replayed: Mapping[str, Any]) -> list[Block]:
    """A block as it is sent; what a provider gave to be sent back as it was stands in `replayed`."""
    kind = block["type"]
    if kind == "text":
        return [("text", block["text"])] if block["text"] else []
    if kind == "reasoning":
        return [("reasoning", block["text"], replayed.get("signature"))]
    if kind == "tool-call":
        return [("call", block["id"], block["name"], json.loads(block["arguments"] or "{}"))]
    if kind == "image":
        # What the default model, which sees no images, is told of one; taken out or not.
        digest = str(block["attachment"].get("attachmentId", "undefined"))[7:15]
        return [("text", f"[image omitted because this model accepts text only; attachment sha256:{digest}]")]
    return [UNKNOWN] if kind == "unknown" else [(kind,)]


def merged(said: Iterable[tuple[str, list[Block]]]) -> History:
    """Neighbours of one role as one entry; what has no blocks is not said; system text is left out."""
    history: History = []
    for role, blocks in said:
        if role == "system" or not blocks:
            continue
        if history and history[-1][0] == role:
            history[-1][1].extend(blocks)
        else:
            history.append((role, list(blocks)))
    return history


# -- requests -------------------------------------------------------------------------------------


def history_in(request: Mapping[str, Any]) -> History:
    """The messages of a request in the same shape."""
    return merged(
        (message["role"], [_sent(block) for block in _blocks(message["content"])])
        for message in request["messages"]
    )


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _sent(block: Mapping[str, Any]) -> Block:
    kind = block["type"]
    if kind == "text":
        return ("text", block["text"])
    if kind == "thinking":
        return ("reasoning", block["thinking"], block.get("signature"))
    if kind == "tool_use":
        return ("call", block["id"], block["name"], block["input"])
    if kind == "tool_result":
        content = tuple(_sent(one) for one in _blocks(block["content"]))
        return ("result", block["tool_use_id"], bool(block.get("is_error", False)), content)
    return (kind,)
