"""The verbs. `AsyncClient` for event loops, `Client` for plain code; one meaning, two ways to wait."""

from dsh_tasks.client.asynchronous import AsyncClient, AsyncRun
from dsh_tasks.client.output import Output
from dsh_tasks.client.plain import Client, Run
from dsh_tasks.client.publisher import Publisher
from dsh_tasks.client.starting import Start
from dsh_tasks.client.waiting import POLL_S, REST_PER_TASK_S, Look, RecordWaiter, Until, Waiter, watch
from dsh_tasks.client.waits import InboxSeen, Waited

__all__ = [
    "POLL_S",
    "REST_PER_TASK_S",
    "AsyncClient",
    "AsyncRun",
    "Client",
    "InboxSeen",
    "Look",
    "Output",
    "Publisher",
    "RecordWaiter",
    "Run",
    "Start",
    "Until",
    "Waited",
    "Waiter",
    "watch",
]
