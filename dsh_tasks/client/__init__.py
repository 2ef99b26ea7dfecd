"""The verbs. `AsyncClient` for event loops, `Client` for plain code; one meaning, two ways to wait."""

from dsh_tasks.client.asynchronous import AsyncClient, AsyncRun
from dsh_tasks.client.endings import AsyncSubscription, OnEndings
from dsh_tasks.client.output import Output
from dsh_tasks.client.plain import Client, Run, Subscription
from dsh_tasks.client.publisher import Publisher
from dsh_tasks.client.starting import Start
from dsh_tasks.client.waiting import POLL_S, REST_PER_TASK_S, Look, RecordWaiter, Until, Waiter, watch
from dsh_tasks.client.waits import InboxSeen, Waited

__all__ = [
    "POLL_S",
    "REST_PER_TASK_S",
    "AsyncClient",
    "AsyncRun",
    "AsyncSubscription",
    "Client",
    "InboxSeen",
    "Look",
    "OnEndings",
    "Output",
    "Publisher",
    "RecordWaiter",
    "Run",
    "Start",
    "Subscription",
    "Until",
    "Waited",
    "Waiter",
    "watch",
]
