"""A large session log, written as a stream: for benches of what reads logs.

    python -m bench.big_log FILE [--mb 100] [--turns 1700] [--compact-every 40] [--chained] [--seed 1]

The same arguments give the same bytes. A turn has steps with parallel calls, whose results are mostly 1
to 8 KB of code, logs and listings, reasoning, streamed deltas as the harness keeps them, rows of the
inbox, of delivery, titles, and every 40 turns a compaction of what was said in the turns since the one
before, or with `--chained` of all that was said, the summary before it included. The last turn's messages
stay. As a fork the log is verbatim; so is a window that begins right behind a turn with a compaction,
unless they are chained. Prints what it wrote.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

START_MS = 1_796_000_000_000
SESSION = "big-log"
CWD = "/srv/project"
ROUTE = {"provider": "deepseek-official", "model": "deepseek-v4-flash"}
TITLE_EVERY = 25
ENDINGS = (("completed", 92), ("aborted", 3), ("error", 2), ("max-tokens", 2), ("interrupted", 1))
SYLLABLES = """
a al ac be bo build ca cess co con cu de di do dir e er es ex fa fi fo form ge get gi ha he hi i in ing is
jo key la le list lo ma me mi mo na ne no o on or pa path pe po port pro que ra re ri ro sa se set si so st
ta te ter ti tion to type u un up va val ve vi wa with x y
""".split()


class Prose:
    """Text that compresses as code and logs do: words by Zipf's law, paths, numbers; no block comes twice."""

    def __init__(self, rng: random.Random, *, words: int = 12_000) -> None:
        self.rng = rng
        self._vocabulary = [self._word() for _ in range(words)]
        self._weights = list(accumulate(1 / (rank + 2.7) for rank in range(words)))
        self._ready: list[str] = []
        self._paths = [self._path() for _ in range(600)]

    def _word(self) -> str:
        length = 1 + min(int(self.rng.expovariate(0.8)), 4)
        word = "".join(self.rng.choices(SYLLABLES, k=length))
        return self.rng.choices(
            (word, word.title(), word + "é", f"{word}_{self.rng.choice(SYLLABLES)}"), (85, 6, 1, 8)
        )[0]

    def _path(self) -> str:
        return "/".join(["src", *self.words(self.rng.randint(1, 3))]) + self.rng.choice((".py", ".ts", ".md"))

    def words(self, count: int) -> list[str]:
        if len(self._ready) < count:
            self._ready = self.rng.choices(self._vocabulary, cum_weights=self._weights, k=4096 + count)
        taken = self._ready[-count:]
        del self._ready[-count:]
        return taken

    def sentences(self, size: int) -> str:
        """About `size` characters for people."""
        lines, length = [], 0
        while length < size:
            line = " ".join(self.words(self.rng.randint(6, 16))).capitalize() + self.rng.choice(
                (". ", ".\n\n", ": ")
            )
            lines.append(line)
            length += len(line)
        return "".join(lines).strip()[: max(size, 1)]

    def output(self, size: int) -> str:
        """About `size` characters as a tool gives them."""
        line = self.rng.choices((self._code, self._log, self._found), (50, 20, 30))[0]()
        lines, length = [], 0
        while length < size:
            text = next(line)
            lines.append(text)
            length += len(text) + 1
        return "\n".join(lines)[:size]

    def _code(self) -> Iterator[str]:
        number = self.rng.randint(1, 400)
        shapes: Sequence[Callable[..., str]] = (
            lambda a, b, c: f"def {a}_{b}(self, {c}: str) -> int:",
            lambda a, b, c: f"    {a} = self.{b}({c}, limit={len(a) * 10})",
            lambda a, b, c: f'    if {a} is None or "{b}" not in {c}:',
            lambda a, b, c: f'        raise ValueError(f"{a} {b}: {{{c}!r}}")',
            lambda a, b, c: f"    return [{a} for {a} in {b} if {a}.{c}]",
            lambda a, b, c: f"    # {a} {b} {c}",
            lambda _a, _b, _c: "",
            lambda a, b, c: f"\tfrom {a}.{b} import {c}",
        )
        while True:
            yield f"{number:>6}\t{self.rng.choice(shapes)(*self.words(3))}"
            number += 1

    def _log(self) -> Iterator[str]:
        second = self.rng.randrange(36_000)
        while True:
            second += self.rng.randrange(3)
            clock = f"2026-11-30T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
            level = self.rng.choice(("INFO", "INFO", "INFO", "DEBUG", "\x1b[33mWARN\x1b[0m"))
            yield (
                f"{clock}.{self.rng.randrange(1000):03}Z {level} {' '.join(self.words(5))}"
                f" id={self.rng.getrandbits(32):08x} took={self.rng.randrange(900)}ms"
            )

    def _found(self) -> Iterator[str]:
        path = self.path()
        while True:
            if self.rng.random() < 0.2:
                path = self.path()
            yield f"{path}:{self.rng.randrange(2000)}: {' '.join(self.words(7))}"

    def path(self) -> str:
        return self.rng.choice(self._paths)

    def name(self) -> str:
        """An id as the harness makes them."""
        bits = f"{self.rng.getrandbits(128):032x}"
        return "-".join((bits[:8], bits[8:12], bits[12:16], bits[16:20], bits[20:]))

    def result_size(self, most: int) -> int:
        """Size of a tool's result: a fifth small, most of 1 to 8 KB, a few of 30 KB."""
        draw = self.rng.random()
        if draw < 0.22:
            size = self.rng.randint(80, 400)
        elif draw < 0.97:
            size = int(1000 * 8 ** self.rng.random())
        else:
            size = self.rng.randint(20_000, 34_000)
        return min(size, max(most, 80))


class Writer:
    """Writes a v4 log row by row and keeps of it no more than the numbers of its live rows."""

    def __init__(self, file: BinaryIO, prose: Prose, *, compact_every: int, chained: bool) -> None:
        self._file, self._prose, self._rng = file, prose, prose.rng
        self._compact_every, self._chained = compact_every, chained
        self.bytes, self.seq, self.turn, self.step = 0, 0, 0, 0
        self._time = START_MS
        self._live: list[int] = []
        self._fresh = 1
        """Place in `_live` of what the next compaction begins with; the system message is never in it."""
        self._last_turn = 1
        """Place in `_live` of the first message of the turn before."""
        self.compacted: list[int] = []
        """Turns in which a compaction stands."""
        self._line(
            {"type": "session", "version": 4, "id": SESSION, "createdAt": START_MS, "cwd": CWD}
            | {"isSeeded": False, "delegationDepth": 0}
        )

    def _line(self, row: dict[str, Any]) -> None:
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self.bytes += self._file.write(line)

    def _add(self, kind: str, data: dict[str, Any], **more: Any) -> int:
        self._time += self._rng.randrange(1, 900)
        seq = self.seq
        self._line({"type": kind, "seq": seq, "time": self._time, "data": data, **more})
        self.seq += 1
        return seq

    def _show(self, kind: str, data: dict[str, Any], **more: Any) -> int:
        self._live.append(self._add(kind, data, **more, surfaceOp="append"))
        return self._live[-1]

    @property
    def _frame(self) -> dict[str, int]:
        return {"turn": self.turn, "step": self.step}

    # -- a turn -----------------------------------------------------------------------------------

    def write_turn(self, size: int) -> None:
        """One completed turn of about `size` bytes, or the least that a turn takes."""
        end = self.bytes + size
        message = self._user(self._prose.sentences(self._rng.randint(60, min(1200, 60 + size // 30))))
        self._inbox("next-turn", [message])
        self.turn += 1
        self.step = 0
        self._add("turn/start", {"turn": self.turn})
        self._inbox("next-turn", [], removed=1)
        is_compacted = self._compact_every > 0 and self.turn % self._compact_every == 0
        if is_compacted:
            self._compact()
        first = len(self._live)
        self._open_step()
        if self.turn == 1:
            self._system()
        said = self._show("user/message", message)
        if self.turn == 1 or is_compacted:
            self._request("initial" if self.turn == 1 else "change")
        if self.turn % TITLE_EVERY == 1:
            title = {"title": " ".join(self._prose.words(5)), "messageSeqs": [said]}
            self._add("session/title", {**title, "source": {"kind": "fallback"}})
        while end - self.bytes > 2_500:
            self._tools(end - self.bytes)
            self._add("step/end", self._frame)
            self._open_step()
            if self._rng.random() < 0.05:
                self._notice()
        self._assistant([], min(1500, max(80, (end - self.bytes) // 8)))
        self._add("step/end", self._frame)
        reason = self._rng.choices([kind for kind, _ in ENDINGS], [share for _, share in ENDINGS])[0]
        error = {"error": {"message": "overloaded", "code": "SERVER"}} if reason == "error" else {}
        self._add("turn/end", {"turn": self.turn, "reason": {"kind": reason, **error}})
        self._last_turn = max(first, 1)
        if is_compacted and not self._chained:
            self._fresh = len(self._live)

    def _open_step(self) -> None:
        self.step += 1
        self._add("step/start", self._frame)

    def _tools(self, size: int) -> None:
        """A step of calls that run beside each other; at most about `size` bytes."""
        room = size - 2_000
        count = max(1, min(self._rng.choices((1, 2, 3, 5), (55, 25, 15, 5))[0], room // 3_000))
        blocks = [self._call() for _ in range(count)]
        self._assistant(blocks, min(self._rng.randint(60, 500), 60 + room // 12))
        begun = [
            self._add(
                "tool/call",
                {**self._frame, "callId": one["id"], "name": one["name"], "arguments": one["arguments"]},
            )
            for one in blocks
        ]
        order = list(zip(begun, blocks, strict=True))
        self._rng.shuffle(order)
        for seq, block in order:
            text = self._prose.output(self._prose.result_size(room // count))
            message = {
                "role": "tool",
                "source": {"kind": "tool", "callId": block["id"]},
                "toolCallId": block["id"],
                "content": [{"type": "text", "text": text}],
                "isError": self._rng.random() < 0.05,
                "id": self._prose.name(),
            }
            self._show("tool/result", {**self._frame, "message": message}, sourceEventSeqs=[seq])

    def _call(self) -> dict[str, Any]:
        name = self._rng.choice(("bash", "read", "edit", "grep"))
        given: dict[str, Any] = {"path": f"{CWD}/{self._prose.path()}"}
        if name == "bash":
            given = {"command": f'rg -n "{" ".join(self._prose.words(2))}" {self._prose.path()} | head -50'}
        elif name == "edit":
            given |= {"old": self._prose.output(self._rng.randint(40, 300)), "new": self._prose.output(300)}
        return {"type": "tool-call", "id": f"toolu_{self._rng.getrandbits(80):020x}", "name": name} | {
            "arguments": json.dumps(given, ensure_ascii=False)
        }

    # -- rows -------------------------------------------------------------------------------------

    def _inbox(self, target: str, inserted: list[dict[str, Any]], *, removed: int = 0) -> None:
        count = {"removedCount": removed} if removed else {}
        self._add("agent/inbox/spliced", {"target": target, "start": 0, **count, "inserted": inserted})

    def _user(self, text: str, **source: str) -> dict[str, Any]:
        content = [{"type": "text", "text": text}]
        return {
            "content": content,
            "source": {"kind": "user", **source},
            "role": "user",
            "id": self._prose.name(),
        }

    def _notice(self) -> None:
        message = self._user(self._prose.sentences(200), kind="subagent-settled")
        self._inbox("next-step", [message])
        self._inbox("next-step", [], removed=1)
        self._show("user/message", message)

    def _system(self) -> None:
        message = {
            "role": "system",
            "content": [{"type": "text", "text": self._prose.sentences(2_000)}],
            "source": {"kind": "system-prompt"},
            "id": self._prose.name(),
        }
        self._show("system/message", {**self._frame, "message": message})

    def _request(self, reason: str) -> None:
        parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
        tools = [
            {"name": name, "description": f"Use {name} on a file. " * 8, "parameters": parameters}
            for name in ("bash", "read", "edit", "grep")
        ]
        config = {**ROUTE, "maxTokens": 256_000, "reasoningEffort": "high"}
        self._add("request/header", {"header": {"config": config, "tools": tools}, "reason": reason})
        self._add("request/context", {**ROUTE, "contextWindow": 1_000_000})

    def _assistant(self, calls: list[dict[str, Any]], size: int) -> None:
        """An answer of about `size` characters, with what the harness keeps of its stream."""
        delivered = {"sessionId": SESSION, "sessionFormatVersion": 4, "throughSeq": self.seq - 1}
        self._add("session-log-deepseek/delivery-accepted", delivered)
        blocks: list[dict[str, Any]] = []
        if self._rng.random() < 0.5:
            blocks.append({"type": "reasoning", "text": self._prose.sentences(size)})
        blocks += [{"type": "text", "text": self._prose.sentences(size)}, *calls]
        usage = {"inputTokens": self._rng.randrange(90_000), "outputTokens": size // 4, "totalTokens": 90_000}
        replay = {
            "response": {"kind": "deepseek-messages", "version": 1, "model": ROUTE["model"]},
            "blocks": [
                {"type": block["type"], "signature": f"{self._rng.getrandbits(256):064x}"}
                if block["type"] == "reasoning"
                else {"type": block["type"]}
                for block in blocks
            ],
        }
        message = {
            "role": "assistant",
            "content": blocks,
            "source": {"kind": "model", **ROUTE, "replayState": replay},
            "id": self._prose.name(),
        }
        stream = [part for place, block in enumerate(blocks) for part in self._streamed(place, block)]
        stream.append({"type": "chunk", "time": self._time, "chunk": {"type": "usage", "usage": usage}})
        self._show("assistant/message", {**self._frame, "message": message, "usage": usage, "stream": stream})

    def _streamed(self, index: int, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        kind = block["type"]

        def chunk(name: str, **more: Any) -> dict[str, Any]:
            return {"type": "chunk", "time": self._time, "chunk": {"type": name, "index": index, **more}}

        yield chunk("block-start", blockType=kind)
        text = block["arguments"] if kind == "tool-call" else block["text"]
        width = self._rng.randint(12, 40)
        parts = [text[at : at + width] for at in range(0, len(text), width)]
        frame = {"type": f"{kind}-chunks", "time0": self._time, "index": index}
        frame["dt"] = [self._rng.randrange(40) for _ in parts[1:]]
        yield frame | (
            {"id": block["id"], "name": block["name"], "args": parts}
            if kind == "tool-call"
            else {"texts": parts}
        )
        yield chunk("block-end", block=block)

    def _compact(self) -> None:
        """Put a summary in the place of what was said since the last one, save the turn before."""
        gone = self._live[self._fresh : self._last_turn]
        if not gone:
            return
        self.compacted.append(self.turn)
        key, text = self._prose.name(), self._prose.sentences(3_000)
        start = self._add("compaction/start", {"compactionId": key, "turn": self.turn})
        span = {"shadowedRange": {"start": gone[0], "end": gone[-1]}, "shadowedSeqs": gone}
        summary = {"compactionId": key, "summary": [{"type": "text", "text": text}], **span}
        done = self._add("compaction/summary", {**summary, "shadowedTokenCount": 9_000, **ROUTE})
        message = self._user(text, kind="compact-checkpoint", compactionId=key)
        operation = {"op": "replace", "startSeq": gone[0], "endSeq": gone[-1]}
        seq = self._add("user/message", message, sourceEventSeqs=[start, done, *gone], surfaceOp=operation)
        self._live[self._fresh : self._last_turn] = [seq]
        self._add("compaction/end", {"compactionId": key, "turn": self.turn})


def write_log(
    path: Path,
    *,
    size: int,
    turns: int,
    seed: int = 1,
    compact_every: int = 40,
    chained: bool = False,
) -> dict[str, Any]:
    """A log of `turns` completed turns and about `size` bytes at `path`; what it became."""
    rng = random.Random(seed)
    with path.open("wb", buffering=1 << 20) as file:
        writer = Writer(file, Prose(rng), compact_every=compact_every, chained=chained)
        for left in range(turns, 0, -1):
            mean = max(0, size - writer.bytes) / left
            # Turns differ by three times to either side; what one takes too much the others give.
            writer.write_turn(int(mean * (0.35 + rng.random() * 1.3) if left > 1 else mean))
    return {"bytes": writer.bytes, "rows": writer.seq, "turns": turns, "compacted_in": writer.compacted}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--mb", type=float, default=100)
    parser.add_argument("--turns", type=int, default=1_700)
    parser.add_argument("--compact-every", type=int, default=40)
    parser.add_argument("--chained", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wrote = write_log(
        given.file,
        size=int(given.mb * 1e6),
        turns=given.turns,
        seed=given.seed,
        compact_every=given.compact_every,
        chained=given.chained,
    )
    print(json.dumps(wrote))


if __name__ == "__main__":
    main()
