"""The real runtime as the judge of session files: resume each, run a prompt, see what the model is asked.

    with Oracle(folder) as oracle:
        first = oracle.judge({"child-1": file_of_child_1, ...})
        oracle.restart()                       # another process over the same home
        second = oracle.judge(["child-1", ...])

One runtime process runs many sessions. A session that is not resumed is a verdict, not an exception;
every wait is bounded, and running out of it is a verdict too.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

from dsh_tasks import format as log_format
from dsh_tasks.session import Session
from tests.harness.model import RecordingModel

PROFILE = "sdk-minimal"
MODEL = "deepseek-v4-flash"
"""The SDK's default: it sees no images, and has its system text outside the messages."""
AT_ONCE = 4
"""Sessions that run at the same time; the runtime answers some thirty a second on two cores."""
A_PROCESS = 400
"""Sessions that one process opens: it never closes one."""
ANSWER_SECONDS = 30
PACKAGES = ("deepseek-harness-sdk", "deepseek-harness-runtime-bin")


def what_is_missing() -> str | None:
    """Names the packages of the extra `harness` that are not installed; None where all are."""
    missing = [name for name in PACKAGES if not _is_installed(name)]
    return f"{' and '.join(missing)} not installed; pip install -e '.[harness]'" if missing else None


def runtime_version() -> str:
    """Version of the runtime that judges."""
    return importlib.metadata.version("deepseek-harness-runtime-bin")


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@dataclass(frozen=True)
class Verdict:
    """What the runtime made of one session file and one prompt."""

    refusal: str | None = None
    """Why it was not resumed, in the runtime's words; then there is nothing else."""
    ending: str | None = None
    """How the turn of the prompt ended."""
    requests: tuple[dict[str, Any], ...] = ()
    """What the model was sent in this turn."""

    @property
    def is_accepted(self) -> bool:
        return self.refusal is None


def prompt_of(session_id: str, visit: int) -> str:
    """A prompt that is said once: it tells the requests of many sessions apart."""
    return f"Visit {visit} of {session_id}."


def reply_to(prompt: str) -> str:
    """What the model answers to `prompt_of`."""
    return f"Seen: {prompt}"


class Oracle:
    """A home, a working folder and a model in `folder`, and the runtime over them."""

    def __init__(self, folder: Path, *, profile: str = PROFILE, model: str = MODEL) -> None:
        self.cwd = (folder / "project").resolve()
        self.home = (folder / "home").resolve()
        self.cwd.mkdir(parents=True, exist_ok=True)
        self.profile = profile
        self.model_name = model
        self.model = RecordingModel(reply_to)
        self.visit = 0
        self._harness: Any = None
        self._lock = threading.Lock()

    def __enter__(self) -> Oracle:
        self.model.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self.model.close()

    # -- files ------------------------------------------------------------------------------------

    def path_of(self, session_id: str) -> Path:
        """Where the runtime looks for the file of a session."""
        folder = f"-{str(self.cwd).replace('/', '-')}--"
        packed = "" if self.profile == PROFILE else ".zstd"
        return self.home / "sessions" / folder / session_id / f"session.v4.jsonl{packed}"

    def at_home(self, session: Session, session_id: str) -> Session:
        """The same log under this name and in this working folder."""
        return changed(session, header=changed(session.header, id=session_id, cwd=str(self.cwd)))

    def file_of(self, session: Session, session_id: str) -> bytes:
        """A log as the file that the runtime is to resume under this name."""
        placed = self.at_home(session, session_id)
        return log_format.write(placed) if self.profile == PROFILE else log_format.pack(placed)

    def _lay(self, session_id: str, data: bytes) -> None:
        path = self.path_of(session_id)
        path.parent.mkdir(parents=True)
        path.write_bytes(data)

    # -- judging ----------------------------------------------------------------------------------

    def judge(self, files: Mapping[str, bytes] | Iterable[str]) -> dict[str, Verdict]:
        """Resume and prompt each session: new files, or names of those that are at home already."""
        if isinstance(files, Mapping):
            for session_id, data in files.items():
                self._lay(session_id, data)
        self.visit += 1
        names = list(files)
        verdicts: dict[str, Verdict] = {}
        for start in range(0, len(names), A_PROCESS):
            if start:
                self.restart()
            batch = names[start : start + A_PROCESS]
            with ThreadPoolExecutor(AT_ONCE) as pool:
                verdicts |= zip(batch, pool.map(self._visited, batch), strict=True)
        return verdicts

    def restart(self) -> None:
        """End the runtime; the next session is opened by another process."""
        self._stop()

    def _visited(self, session_id: str) -> Verdict:
        from deepseek_harness.errors import HarnessError

        harness = self._running()
        try:
            session = harness.resume_session(session_id)
        except (HarnessError, TimeoutError) as error:
            return Verdict(refusal=_words(error, self.cwd))
        prompt = prompt_of(session_id, self.visit)
        # The SDK waits for the end of a turn without bound.
        overdue = threading.Timer(ANSWER_SECONDS, harness.close)
        overdue.start()
        try:
            ending = session.run(prompt).finish_reason
        except (HarnessError, OSError) as error:
            return Verdict(refusal=f"resumed, but not run: {_words(error, self.cwd)}")
        finally:
            overdue.cancel()
        return Verdict(ending=ending, requests=tuple(self.model.asked(prompt)))

    def _running(self) -> Any:
        with self._lock:
            if self._harness is None:
                from deepseek_harness import DeepSeekHarness

                self._harness = DeepSeekHarness(
                    dsh_home=str(self.home),
                    cwd=str(self.cwd),
                    profile=self.profile,
                    model=self.model_name,
                    base_url=self.model.base_url,
                    api_key="unused",
                    request_timeout_seconds=float(ANSWER_SECONDS),
                    shutdown_timeout_seconds=5.0,
                    env={"NO_PROXY": "127.0.0.1", **_no_secrets()},
                )
                self._harness.start()
            return self._harness

    def _stop(self) -> None:
        if self._harness is not None:
            self._harness.close()
            self._harness = None


def _no_secrets() -> dict[str, str]:
    """Whatever the shell is set up for must not reach the runtime."""
    return {name: "" for name in os.environ if name.endswith("_API_KEY")}


def _words(error: Exception, cwd: Path) -> str:
    """The first line of a refusal, without this machine's paths and the session's name."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    first = re.sub(r" \(raw log: .*\)$", "", first)
    first = re.sub(r'^session "[^"]*": (stored log is corrupt: )?(SessionFormatError: )?', "", first)
    return first.replace(str(cwd.parent), "..").replace(str(cwd).replace("/", "-"), "..")
