"""The only room that knows Redis."""

from dsh_tasks.store.answers import (
    Accepted,
    Awaited,
    BudgetSpent,
    Claimed,
    DueTask,
    Fence,
    FencedOff,
    KillReceipt,
    LossesSpent,
    NewTask,
    NotClaimed,
    OutputPage,
    Promotion,
    Record,
    Requeued,
    Settled,
    Verdict,
)
from dsh_tasks.store.connection import Link, connect, connect_sync, masked
from dsh_tasks.store.inbox import Inbox
from dsh_tasks.store.keys import Keys
from dsh_tasks.store.outbox import Gone, Outbox, OutboxState
from dsh_tasks.store.permits import Granted, Permits, Waits
from dsh_tasks.store.store import Store
from dsh_tasks.store.wakeups import Wakeups

__all__ = [
    "Accepted",
    "Awaited",
    "BudgetSpent",
    "Claimed",
    "DueTask",
    "Fence",
    "FencedOff",
    "Gone",
    "Granted",
    "Inbox",
    "Keys",
    "KillReceipt",
    "Link",
    "LossesSpent",
    "NewTask",
    "NotClaimed",
    "Outbox",
    "OutboxState",
    "OutputPage",
    "Permits",
    "Promotion",
    "Record",
    "Requeued",
    "Settled",
    "Store",
    "Verdict",
    "Waits",
    "Wakeups",
    "connect",
    "connect_sync",
    "masked",
]
