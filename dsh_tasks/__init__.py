"""Durable, distributed background subagents. Nothing is defined here; these are the names that users need."""

from dsh_tasks.client import AsyncClient, AsyncRun, Client, InboxSeen, Output, Run, Start, Waited
from dsh_tasks.config import Config, load_config
from dsh_tasks.errors import (
    ConfigRefused,
    DshTasksError,
    InputRefused,
    KeyConflict,
    LimitReached,
    OptionRefused,
    OwnerNotRunning,
    SchemaRefused,
    SeedRefused,
    SessionRefused,
    SpeakerTaken,
    StillRunning,
    StoreUnavailable,
    TaskNotFound,
)
from dsh_tasks.format import read as read_session
from dsh_tasks.notice import Notice
from dsh_tasks.parent_loop import ParentLoop, SessionLog
from dsh_tasks.progress import CallAtWork, Progress
from dsh_tasks.provider import Capabilities, Provider, Registry
from dsh_tasks.session import Event, Session, Turn
from dsh_tasks.session_file import SessionFile
from dsh_tasks.settings import Settings
from dsh_tasks.settings import load as load_settings
from dsh_tasks.store import KillReceipt
from dsh_tasks.store.audit import AuditReport, Fault
from dsh_tasks.submission import AgentOptions, ToolFilter
from dsh_tasks.task import Cause, Status, Task, Usage
from dsh_tasks.tools import Call, Tool, ToolResult, mount

__all__ = [
    "AgentOptions",
    "AsyncClient",
    "AsyncRun",
    "AuditReport",
    "Call",
    "CallAtWork",
    "Capabilities",
    "Cause",
    "Client",
    "Config",
    "ConfigRefused",
    "DshTasksError",
    "Event",
    "Fault",
    "InboxSeen",
    "InputRefused",
    "KeyConflict",
    "KillReceipt",
    "LimitReached",
    "Notice",
    "OptionRefused",
    "Output",
    "OwnerNotRunning",
    "ParentLoop",
    "Progress",
    "Provider",
    "Registry",
    "Run",
    "SchemaRefused",
    "SeedRefused",
    "Session",
    "SessionFile",
    "SessionLog",
    "SessionRefused",
    "Settings",
    "SpeakerTaken",
    "Start",
    "Status",
    "StillRunning",
    "StoreUnavailable",
    "Task",
    "TaskNotFound",
    "Tool",
    "ToolFilter",
    "ToolResult",
    "Turn",
    "Usage",
    "Waited",
    "load_config",
    "load_settings",
    "mount",
    "read_session",
]
