"""Make the sample logs of tests/logs with the real DeepSeek Harness runtime, each named for its feature.

    pip install -e '.[harness]'
    python -m tools.make_sample_logs tests/logs [NAME ..]

Each log is what the runtime wrote, byte for byte, while a scripted model answered. A recipe says what
is asked and what the model replies; where a log must stand still in the middle of something, the
runtime is closed or killed there, or the file is copied. `sdk` recipes give zstd files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import tempfile
import threading
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import zstandard

from tools.scripted_model import StreamEvent, block

CWD = Path("/srv/project")
"""Stands in the logs, so it says nothing about this machine."""
WAIT_SECONDS = 30
LONG = "lorem ipsum " * 100
"""Enough to be worth a compaction under EAGER."""
EAGER = "- {id: compaction-basic, config: {thresholdRatio: 0.0007, retainTokens: 100, maxTokens: 500}}\n"
"""A patch of the profile: compact soon, keep little."""
DEEP = "- {id: tool-subagent-fork, config: {provider: fork, toolName: subagent_fork, maxDepth: 3}}\n"
"""A patch of the profile: fork children may fork."""
PRUNING = EAGER + (
    "- {id: tool-result-pruner, config: {thresholdChars: 600, headChars: 100, tailChars: 100}}\n"
)
"""A patch of the profile: cut long results of tools short first."""
FORBIDDEN = ("127.0.0.1", "localhost", "/home", "/root", "/tmp", "/work")
"""What no log may hold: it would tell about this machine."""


@dataclass(frozen=True)
class Say:
    """One answer of the model."""

    text: str = ""
    tools: Sequence[tuple[str, dict[str, Any]]] = ()
    thoughts: str = ""
    """Reasoning, which gets a signature."""
    stop: str | None = None
    status: int | None = None
    """An HTTP error in place of an answer."""
    seconds: float = 0.0
    """Pause in the middle of the text."""

    def events(self, number: int, request: dict[str, Any]) -> Iterator[StreamEvent]:
        """The answer as it is streamed."""
        # A guess at them, as the runtime decides by it when to compact.
        usage = {"input_tokens": len(json.dumps(request["messages"])) // 4, "output_tokens": 0}
        about = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": request["model"]}
        ending = {"stop_reason": None, "stop_sequence": None}
        yield StreamEvent("message_start", {"message": {**about, "content": [], **ending, "usage": usage}})
        index = 0
        if self.thoughts:
            yield from thinking(index, self.thoughts, f"signature-{number}")
            index += 1
        if self.text:
            yield from block(index, {"type": "text", "text": ""}, {"type": "text_delta", "text": self.text})
            index += 1
        for place, (name, arguments) in enumerate(self.tools):
            opened = {"type": "tool_use", "id": f"toolu_{number:04}_{place}", "name": name, "input": {}}
            told = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            yield from block(index + place, opened, told)
        reason = self.stop or ("tool_use" if self.tools else "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        yield StreamEvent("message_delta", {"delta": delta, "usage": {"output_tokens": 5}})
        yield StreamEvent("message_stop", {})


def thinking(index: int, words: str, signature: str) -> list[StreamEvent]:
    """A block of reasoning and its signature."""
    opened = {"type": "thinking", "thinking": "", "signature": ""}
    events = block(index, opened, {"type": "thinking_delta", "thinking": words})
    signed = {"index": index, "delta": {"type": "signature_delta", "signature": signature}}
    return [*events[:-1], StreamEvent("content_block_delta", signed), events[-1]]


class Model(ThreadingHTTPServer):
    """Answers by the last prompt that the script knows, and by how often it has answered since."""

    daemon_threads = True

    def __init__(self, script: dict[str, Sequence[Say]], summary: Say) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.summary = summary
        self.failures: dict[str, int] = {}
        self.count = 0
        self.paused = threading.Event()
        """Set while an answer pauses."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, request: dict[str, Any]) -> tuple[int, Say]:
        """The number of this call and the reply to it."""
        self.count += 1
        since = 0
        last = texts_of(request["messages"][-1])
        if any("summar" in text and text not in self.script for text in last):
            # The runtime itself asks, for the summary of a compaction.
            return self.count, replace(self.summary, text=self.summary.text.format(self.count))
        for message in reversed(request["messages"]):
            if message["role"] == "assistant":
                since += 1
                continue
            known = next((text for text in texts_of(message) if text in self.script), None)
            if known is not None:
                return self.count, self._reply(known, since)
        return self.count, Say("Nobody asked.")

    def _reply(self, prompt: str, since: int) -> Say:
        replies = self.script[prompt]
        # A refused call leaves no answer in the history, so it is counted here.
        place = since + self.failures.get(prompt, 0)
        reply = replies[place] if place < len(replies) else Say("The script has ended.")
        if reply.status is not None:
            self.failures[prompt] = self.failures.get(prompt, 0) + 1
        return reply


def texts_of(message: dict[str, Any]) -> list[str]:
    """The texts of a message."""
    content = message["content"]
    return (
        [content] if isinstance(content, str) else [one["text"] for one in content if one["type"] == "text"]
    )


class _Handler(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number, reply = self.server.answer(request)
        if reply.status is not None:
            self._fail(reply.status)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in reply.events(number, request):
            try:
                self.wfile.write(event.encode())
                self.wfile.flush()
            except OSError:
                return  # the runtime was closed, as the recipe wants it
            if reply.seconds and event.name == "content_block_delta":
                self.server.paused.set()
                time.sleep(reply.seconds)

    def _fail(self, status: int) -> None:
        body = json.dumps(
            {"type": "error", "error": {"type": "api_error", "message": f"status {status}"}}
        ).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


# -- the runtime ----------------------------------------------------------------------------------


@dataclass
class Kitchen:
    """A fresh home and the runtime over it; a recipe works in it and leaves one log."""

    model: Model
    home: Path
    profile: str = "sdk-minimal"
    patch: str = ""

    @contextmanager
    def running(self) -> Iterator[Any]:
        """A runtime process, closed at the end with time to write what it knows."""
        # Some 300 MB, and needed only here.
        from deepseek_harness import DeepSeekHarness  # noqa: PLC0415

        given = {
            "dsh_home": str(self.home),
            "cwd": str(CWD),
            "profile": self.profile,
            "base_url": self.model.base_url,
            "api_key": "unused",
            "shutdown_timeout_seconds": 15.0,
            "env": {"DSH_PERMISSION_MODE": "danger-full-access", "NO_PROXY": "127.0.0.1"},
        }
        if self.patch:
            path = self.home / "patch.yml"
            path.write_text(self.patch)
            given["patches"] = (str(path),)
        with DeepSeekHarness(**given) as harness:
            yield harness

    def log_of(self, session_id: str) -> Path:
        """The file of a session."""
        (path,) = self.home.glob(f"sessions/*/{session_id}/session.v4.jsonl*")
        return path

    def rows(self, session_id: str) -> list[dict[str, Any]]:
        """The whole rows that a plain log holds now."""
        found = list(self.home.glob(f"sessions/*/{session_id}/session.v4.jsonl"))
        data = found[0].read_bytes() if found else b""
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def wait_for(self, session_id: str, kind: str, count: int = 1) -> None:
        """Until the log holds that many rows of a type."""
        until(lambda: sum(row["type"] == kind for row in self.rows(session_id)) >= count, f"{count} {kind}")


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a condition, not for ever."""
    give_up = time.monotonic() + WAIT_SECONDS
    while not is_so():
        if time.monotonic() > give_up:
            raise TimeoutError(what)
        time.sleep(0.02)


def in_background(session: Any, prompt: str) -> threading.Thread:
    """A turn that runs on while the recipe does something to it."""

    def run() -> None:
        try:
            session.run(prompt)
        except Exception as error:  # noqa: BLE001 -- the recipe closes or kills the runtime under it
            print(f"  the turn ended with {type(error).__name__}")  # noqa: T201

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


# -- recipes --------------------------------------------------------------------------------------

Recipe = Callable[[Kitchen], Path]
SESSION = "sample"


@dataclass(frozen=True)
class Dish:
    """A log: what the model says to which prompt, and what is done."""

    script: dict[str, Sequence[Say]]
    recipe: Recipe
    profile: str = "sdk-minimal"
    patch: str = ""
    summary: Say = Say("Summary {}: much was said.")
    """What the model says when the runtime itself asks for one."""


def say(*texts: str) -> dict[str, Sequence[Say]]:
    """A plain answer to each of these prompts."""
    return {text: [Say(f"Answer to: {text}")] for text in texts}


def bash(command: str) -> tuple[str, dict[str, Any]]:
    """A call of the shell."""
    return "bash", {"command": command, "description": "Run it"}


def turns(*prompts: Any) -> Recipe:
    """One turn after the other."""

    def cook(kitchen: Kitchen) -> Path:
        with kitchen.running() as harness:
            session = harness.start_session(SESSION)
            for prompt in prompts:
                session.run(prompt)
        return kitchen.log_of(SESSION)

    return cook


def aborted(kitchen: Kitchen) -> Path:
    """Closed while the model speaks; resumed and asked again."""
    with kitchen.running() as harness:
        session = harness.start_session(SESSION)
        session.run("one")
        turn = in_background(session, "speak slowly")
        until(kitchen.model.paused.is_set, "the model speaks")
        time.sleep(0.5)
    turn.join(WAIT_SECONDS)
    with kitchen.running() as harness:
        harness.resume_session(SESSION).run("three")
    return kitchen.log_of(SESSION)


def interrupted(kitchen: Kitchen) -> Path:
    """Killed while one of two tools runs; resumed and asked again, twice."""
    with kitchen.running() as harness:
        session = harness.start_session(SESSION)
        session.run("one")
        turn = in_background(session, "sleep long")
        kitchen.wait_for(SESSION, "tool/call")
        kill(harness)
    turn.join(WAIT_SECONDS)
    with kitchen.running() as harness:
        session = harness.resume_session(SESSION)
        session.run("three")
        session.run("four")
    return kitchen.log_of(SESSION)


def killed_in_compaction(kitchen: Kitchen) -> Path:
    """Killed while the summary is made; resumed and asked again."""
    with kitchen.running() as harness:
        session = harness.start_session(SESSION)
        session.run("one")
        session.run("two")
        turn = in_background(session, "three")
        kitchen.wait_for(SESSION, "compaction/start")
        until(kitchen.model.paused.is_set, "the summary is being made")
        kill(harness)
    turn.join(WAIT_SECONDS)
    kitchen.model.summary = Say("Summary {}: much was said.")
    with kitchen.running() as harness:
        session = harness.resume_session(SESSION)
        session.run("four")
        session.run("five")
    return kitchen.log_of(SESSION)


def kill(harness: Any) -> None:
    """As a crash would: the runtime and the shells that it started."""
    process = harness.client._proc  # noqa: SLF001 -- the SDK has no way to be killed
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid, signal.SIGKILL)
    for child in children:
        try:
            os.kill(int(child), signal.SIGKILL)
        except ProcessLookupError:
            pass  # it ended with its parent


def queued(kitchen: Kitchen) -> Path:
    """Two prompts come while a tool runs; later turns claim them."""
    with kitchen.running() as harness:
        session = harness.start_session(SESSION)
        session.run("one")
        turn = in_background(session, "sleep a second")
        kitchen.wait_for(SESSION, "tool/call")
        for text in ("typed while it ran", "typed after that"):
            harness.client.session_prompt(SESSION, [{"type": "text", "text": text}])
        turn.join(WAIT_SECONDS)
        kitchen.wait_for(SESSION, "turn/end", 4)
        session.run("five")
    return kitchen.log_of(SESSION)


def left_waiting(kitchen: Kitchen) -> Path:
    """A copy of the log while a tool runs and a prompt waits."""
    with kitchen.running() as harness:
        session = harness.start_session(SESSION)
        session.run("one")
        session.run("two")
        turn = in_background(session, "sleep a second")
        kitchen.wait_for(SESSION, "tool/call")
        harness.client.session_prompt(SESSION, [{"type": "text", "text": "typed while it ran"}])
        kitchen.wait_for(SESSION, "agent/inbox/spliced", 7)
        copied = shutil.copy(kitchen.log_of(SESSION), kitchen.home / "copy.session.v4.jsonl")
        turn.join(WAIT_SECONDS)
        kitchen.wait_for(SESSION, "turn/end", 4)
    return Path(copied)


def nested_forks(kitchen: Kitchen) -> Path:
    """The log of a fork child of a fork child, each by the harness' own tool."""
    with kitchen.running() as harness:
        session = harness.start_session(SESSION)
        session.run("one")
        session.run("delegate")
        until(lambda: deepest(kitchen) is not None, "a grandchild")
        found = deepest(kitchen)
        assert found is not None
    return found


def deepest(kitchen: Kitchen) -> Path | None:
    """The log of delegation depth 2, once its own turn has ended."""
    for path in kitchen.home.glob("sessions/*/*/session.v4.jsonl.zstd"):
        lines = unpacked(path.read_bytes()).splitlines()
        ended = lines and json.loads(lines[-1])["type"] == "turn/end"
        if lines and json.loads(lines[0]).get("delegationDepth") == 2 and ended:  # noqa: PLR2004
            return path
    return None


def unpacked(data: bytes) -> bytes:
    """The text of a log, plain or zstd."""
    if not data.startswith(b"\x28\xb5\x2f\xfd"):
        return data
    return zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()


def image(red: int) -> dict[str, Any]:
    """A block with a picture of one colour."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = 8
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes((red, 80, 20)) * size) * size)
    png = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", pixels) + part(b"IEND", b"")
    return {"type": "image", "mimeType": "image/png", "data": b64encode(png).decode()}


THREE = ("one", "two", "three")
DISHES: dict[str, Dish] = {
    "plain": Dish(say(*THREE), turns(*THREE)),
    "parallel-tools": Dish(
        say("one", "three")
        | {
            "two": [
                Say("I look at three things.", [bash(f"echo thing {number}") for number in (1, 2, 3)]),
                Say("", [bash("echo more")]),
                Say("I have looked."),
            ]
        },
        turns(*THREE),
    ),
    "tool-error": Dish(
        say("one", "three")
        | {
            "two": [
                Say("I try.", [bash("exit 3"), ("no_such_tool", {"a": 1}), ("bash", {"wrong": True})]),
                Say("Nothing worked."),
            ]
        },
        turns(*THREE),
    ),
    "errored": Dish(say("one", "three") | {"two": [Say(status=400)]}, turns(*THREE)),
    "retried": Dish(
        say("one", "three") | {"two": [Say(status=500), Say(status=500), Say("At last.")]}, turns(*THREE)
    ),
    "max-tokens": Dish(
        say("one", "three") | {"two": [Say("I begin and do not", stop="max_tokens")]}, turns(*THREE)
    ),
    "reasoning": Dish(
        say("three")
        | {
            "one": [Say("Thought over.", thoughts="Let me think.")],
            "two": [
                Say("I look.", [bash("echo thing")], thoughts="I should look."),
                Say("I have looked.", thoughts="So that is that."),
            ],
        },
        turns(*THREE),
    ),
    "aborted": Dish(say("one", "three") | {"speak slowly": [Say("I speak slowly.", seconds=3)]}, aborted),
    "interrupted": Dish(
        say("one", "three", "four")
        | {"sleep long": [Say("I wait.", [bash("sleep 600"), bash("echo second")])]},
        interrupted,
    ),
    "queued": Dish(
        say("one", "typed while it ran", "typed after that", "five")
        | {"sleep a second": [Say("I wait.", [bash("sleep 1")]), Say("Waited.")]},
        queued,
    ),
    "left-waiting": Dish(
        say("one", "two", "typed while it ran")
        | {"sleep a second": [Say("I wait.", [bash("sleep 1")]), Say("Waited.")]},
        left_waiting,
    ),
    "compacted": Dish(
        say("one", "four") | {text: [Say(f"{LONG}{text}")] for text in ("two", "three")},
        turns("one", "two", "three", "four"),
        patch=EAGER,
    ),
    "compaction-failed": Dish(
        say("one", "four") | {text: [Say(f"{LONG}{text}")] for text in ("two", "three")},
        turns("one", "two", "three", "four"),
        patch=EAGER,
        summary=Say(f"Longer than what it sums up: {LONG * 6}"),
    ),
    "compacted-twice": Dish(
        say("one", "six")
        | {text: [Say(f"{LONG}{text}")] for text in ("two", "three", "four")}
        | {"five": [Say(f"{LONG}", [bash("echo thing")]), Say(f"{LONG} five")]},
        turns("one", "two", "three", "four", "five", "six"),
        patch=EAGER,
    ),
    "compaction-killed": Dish(
        say("one", "three", "five") | {text: [Say(f"{LONG * 2}{text}")] for text in ("two", "four")},
        killed_in_compaction,
        patch=EAGER,
        summary=Say("Summary {}: much was said.", seconds=3),
    ),
    "image": Dish(
        say("one", "three") | {"what is this?": [Say("A square.")]},
        turns("one", [{"type": "text", "text": "what is this?"}, image(200), image(90)], "three"),
    ),
    "sdk-plain": Dish(
        say("one", "three") | {"two": [Say("I look.", [bash("echo thing")]), Say("I have looked.")]},
        turns(*THREE),
        profile="sdk",
    ),
    "sdk-pruned": Dish(
        say("one", "four")
        | {
            "two": [Say("I look.", [bash("seq 1 900"), bash("echo short")]), Say("I have looked.")],
            "three": [Say("Again.", [bash("seq 1 1200")]), Say("I have looked again.")],
        },
        turns("one", "two", "three", "four"),
        profile="sdk",
        patch=PRUNING,
    ),
    "sdk-nested-forks": Dish(
        say("one")
        | {
            "delegate": [
                Say("I delegate.", [("subagent_fork", {"prompt": "child", "description": "A child"})])
            ],
            "child": [Say("I too.", [("subagent_fork", {"prompt": "grandchild", "description": "Another"})])],
            "grandchild": [Say("I do it myself.")],
        },
        nested_forks,
        profile="sdk",
        patch=DEEP,
    ),
}


def cook(dish: Dish) -> tuple[str, bytes]:
    """Name's ending and bytes of the log."""
    with tempfile.TemporaryDirectory(prefix="dsh-") as home, Model(dish.script, dish.summary) as model:
        threading.Thread(target=model.serve_forever, daemon=True).start()
        path = dish.recipe(Kitchen(model, Path(home), dish.profile, dish.patch))
        data = path.read_bytes()
        model.shutdown()
    ending = "session.v4.jsonl.zstd" if path.suffix == ".zstd" else "session.v4.jsonl"
    return ending, data


def main() -> None:
    """Make the named logs, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *DISHES], default=[])
    options = parser.parse_args()
    CWD.mkdir(parents=True, exist_ok=True)
    for name in options.names or DISHES:
        ending, data = cook(DISHES[name])
        text = unpacked(data).decode()
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        ends = [row["data"]["reason"]["kind"] for row in rows if row["type"] == "turn/end"]
        found = [word for word in FORBIDDEN if word in text]
        (options.out / f"{name}.{ending}").write_bytes(data)
        print(f"{name}: {len(rows) - 1} rows, {len(data)} bytes, turns {ends}, holds {found}")  # noqa: T201


if __name__ == "__main__":
    main()
