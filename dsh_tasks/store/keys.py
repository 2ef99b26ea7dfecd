"""Every key: its pattern, what it holds, how long it lives.

    task:<id>          hash    the record; until pruned
    log:<id>           stream  the child's own rows, entry id = place + 1; with its record
    output:<id>        string  the child's final text, UTF-8; with its record
    index:<session>    zset    tasks that a session started, by time of acceptance; with its records
    live:<session>     set     those that have not ended; empty when all have
    calls:<session>    hash    call key -> task id; with its records
    inbox:<session>    stream  notices not yet acknowledged
    holds:<session>    hash    task id -> until when its notice is held back
    speaker:<session>  string  token of the process that speaks for a session; expires
    tree:<root>        hash    live, total, usage of a whole tree; with its records
    seed:<digest>      hash    manifest and references; expires while nothing refers to it
    chunk:<digest>     hash    one turn of a seed (zstd) and references; expires likewise
    answer:<token>     string  what a kill answered, for a lost reply; expires after a minute
    route:<digest>     hash    the cool-down of a model route, and its probe; expires
    permits:<digest>   zset    calls of a model route that go on: token -> end of its lease; expires
    killing:<id>       list    what a kill of a very large subtree has yet to walk; goes with it
    leases stops due deadlines endings     zsets that hint the reaper: id -> ms
    kills              zset    tops of kills that go on in steps: what stands below is as good as dead
    stats              hash    counters for operators: messages without a record, pruned records; expires
    sweeper            string  token of the worker that looks for lost hints; expires
    hook               string  endings are sent: digest of the endpoint; expires a week after a worker said so
    hooks              zset    endings to send: id -> due ms; expires a week after the last one came
    hookstats          hash    what came of sending, which endpoint wants no more; one, for ever

Channels: ended:<id>, inbox:<session>, control (ids that are to stop). They only wake.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """Makes the keys of one installation."""

    prefix: str

    def task(self, task_id: str) -> str:
        """The record."""
        return f"{self.prefix}task:{task_id}"

    def log(self, task_id: str) -> str:
        """The child's own rows."""
        return f"{self.prefix}log:{task_id}"

    def output(self, task_id: str) -> str:
        """The child's final text."""
        return f"{self.prefix}output:{task_id}"

    def index(self, session: str) -> str:
        """Tasks that a session started."""
        return f"{self.prefix}index:{session}"

    def live(self, session: str) -> str:
        """Those of them that have not ended."""
        return f"{self.prefix}live:{session}"

    def calls(self, session: str) -> str:
        """Call key to task id."""
        return f"{self.prefix}calls:{session}"

    def inbox(self, session: str) -> str:
        """Notices not yet acknowledged; also the channel that wakes for them."""
        return f"{self.prefix}inbox:{session}"

    def holds(self, session: str) -> str:
        """Notices held back."""
        return f"{self.prefix}holds:{session}"

    def speaker(self, session: str) -> str:
        """The owner lease of a session."""
        return f"{self.prefix}speaker:{session}"

    def tree(self, root: str) -> str:
        """Counters of a whole tree."""
        return f"{self.prefix}tree:{root}"

    def seed(self, digest: str) -> str:
        """A seed's manifest."""
        return f"{self.prefix}seed:{digest}"

    def chunk(self, digest: str) -> str:
        """One turn of a seed."""
        return f"{self.prefix}chunk:{digest}"

    def answer(self, token: str) -> str:
        """A kill's answer."""
        return f"{self.prefix}answer:{token}"

    def route(self, digest: str) -> str:
        """The cool-down of a model route."""
        return f"{self.prefix}route:{digest}"

    def permits(self, digest: str) -> str:
        """Calls of a model route that go on."""
        return f"{self.prefix}permits:{digest}"

    def ended(self, task_id: str) -> str:
        """Channel that wakes whoever waits for this end."""
        return f"{self.prefix}ended:{task_id}"

    def killing(self, task_id: str) -> str:
        """The rest of a kill's walk."""
        return f"{self.prefix}killing:{task_id}"

    @property
    def deadlines(self) -> str:
        """Tasks by the time at which their life is over."""
        return f"{self.prefix}deadlines"

    @property
    def endings(self) -> str:
        """Tasks that have ended, by when; retention takes them from here."""
        return f"{self.prefix}endings"

    @property
    def stats(self) -> str:
        """Counters for operators."""
        return f"{self.prefix}stats"

    @property
    def sweeper(self) -> str:
        """Who looks for lost hints."""
        return f"{self.prefix}sweeper"

    @property
    def leases(self) -> str:
        """Running tasks by the end of their lease."""
        return f"{self.prefix}leases"

    @property
    def stops(self) -> str:
        """Stopping tasks by the time at which their kill settles by itself."""
        return f"{self.prefix}stops"

    @property
    def due(self) -> str:
        """Queued tasks by the time at which they are published again."""
        return f"{self.prefix}due"

    @property
    def kills(self) -> str:
        """Kills whose subtree was too large for one step."""
        return f"{self.prefix}kills"

    @property
    def hook(self) -> str:
        """Whether endings are to be sent to an endpoint."""
        return f"{self.prefix}hook"

    @property
    def hooks(self) -> str:
        """Endings to send, by the time of their next try."""
        return f"{self.prefix}hooks"

    @property
    def hookstats(self) -> str:
        """What came of sending."""
        return f"{self.prefix}hookstats"

    @property
    def control(self) -> str:
        """Channel with ids that are to stop."""
        return f"{self.prefix}control"
