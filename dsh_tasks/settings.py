"""Settings: every knob with its unit, default, bounds and environment name (`DSH_TASKS_` + upper case)."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dsh_tasks import dollars, signing
from dsh_tasks.errors import ConfigRefused


class Settings(BaseSettings):
    """The knobs of one installation. Clients and workers of one installation should agree on them."""

    model_config = SettingsConfigDict(
        env_prefix="DSH_TASKS_",
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
        # Among the knobs are secrets.
        hide_input_in_errors=True,
    )

    redis_url: str | None = None
    """Server of the task state; without it the state file of `dsh-tasks up` is read."""
    broker_url: str | None = None
    """Server of the queue; the same as `redis_url` unless given."""
    prefix: str = Field("dsh:", min_length=1, max_length=64)
    """Start of every key; two installations can share one server."""
    queue: str = Field("dsh-tasks", min_length=1, max_length=64)
    """Name of the Celery queue."""
    config: str | None = None
    """Path of the settings file (TOML) with providers, tools and engine options."""

    lease_ms: int = Field(30_000, ge=300, le=3_600_000)
    """How long an attempt is presumed alive after its last heartbeat."""
    grace_ms: int = Field(5_000, ge=0, le=600_000)
    """Added to the lease before another worker takes over."""
    losses: int = Field(3, ge=1, le=100)
    """Leases that may expire without an appended step between them before the task fails."""
    max_attempts: int = Field(10, ge=1, le=1_000)
    """Leases that may expire in all before the task fails, whatever was finished between them."""
    first_pause_ms: int = Field(1_000, ge=0, le=600_000)
    """Pause before the attempt after the first loss; doubles with each further loss, up to 5 min."""
    step_silence_ms: int = Field(900_000, ge=0, le=365 * 24 * 3_600_000)
    """An attempt without a row, a piece of an answer or a new activity for so long stalls; 0 is never."""
    tool_silence_ms: int = Field(7_200_000, ge=0, le=365 * 24 * 3_600_000)
    """The same while a tool runs. A stall is a loss: within the bounds the next attempt goes on."""
    kill_deadline_ms: int = Field(9_000, ge=100, le=600_000)
    """After this a reaper settles the kill of an unresponsive child, within half a second more."""

    live_per_owner: int = Field(10, ge=1, le=100_000)
    """Tasks of one session that may be queued, running or stopping at once."""
    total_per_owner: int = Field(10_000, ge=1, le=10_000_000)
    """Tasks of one session that are kept in all, ended ones included until they are pruned."""
    live_per_tree: int = Field(10_000, ge=1, le=1_000_000)
    """Tasks of a whole tree that may be queued, running or stopping at once."""
    total_per_tree: int = Field(100_000, ge=1, le=100_000_000)
    """Tasks of a whole tree that are kept in all, ended ones included until they are pruned."""
    deadline_ms: int = Field(0, ge=0, le=365 * 24 * 3_600_000)
    """Longest life of a task from acceptance, waiting included; 0 is none. A start may name a shorter one."""
    tree_token_budget: int = Field(0, ge=0)
    """Input and output tokens that a whole tree may take; 0 is none. A call reserves before it is made."""
    tree_cost_budget: Decimal = Field(Decimal(0), ge=0, le=dollars.MOST, decimal_places=dollars.MICRO)
    """US dollars that the model calls of a whole tree may cost; 0 is none. Looked at before each call."""
    reserved_output_tokens: int = Field(8_192, ge=1)
    """Output tokens that a call reserves of the budget where its child names no `maxTokens`."""
    retention_ms: int = Field(7 * 24 * 3_600_000, ge=0)
    """How long the record of a task that has ended is kept; 0 keeps it until `dsh-tasks prune`."""
    replicas: int = Field(0, ge=0, le=100)
    """Replicas that must hold an acceptance, an ending, a kill or an acknowledgement before it is told."""
    max_depth_ceiling: int = Field(8, ge=0, le=64)
    """The operator's cap on depth, also under `provider-managed`."""
    tool_ceiling: Literal["none", "parent"] = "none"
    """`parent`: no child has a tool that its parent lacks, at every level; `none`: its own filter decides."""
    seed_max_bytes: int = Field(256 * 1024 * 1024, ge=1024)
    """Cap on a seed's uncompressed bytes."""
    prompt_max_bytes: int = Field(4 * 1024 * 1024, ge=1)
    """Cap on a prompt's UTF-8 bytes."""
    output_max_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    """Cap on the stored output of one task, UTF-8 bytes; more is cut and marked."""
    output_read_bytes: int = Field(51_200, ge=256, le=16 * 1024 * 1024)
    """Cap on one answer of `task_output`, status line included, UTF-8 bytes."""
    wait_default_ms: int = Field(30_000, ge=1)
    """How long a wait lasts where the caller does not say."""
    wait_cap_ms: int = Field(600_000, ge=1)
    """Longer waits are cut to this, and the answer says so."""
    call_timeout_ms: int = Field(5_000, ge=50)
    """Deadline of one call to the server, its retries included."""
    chunk_expiry_ms: int = Field(3_600_000, ge=1_000)
    """Life of an uploaded seed chunk that no record refers to."""
    notice_hold_ms: int = Field(60_000, ge=100)
    """How long a notice is held back after its owner read, awaited or killed the task itself."""
    speaker_lease_ms: int = Field(30_000, ge=300)
    """How long one process speaks for a session after its last sign of life."""
    max_consecutive_wakes: int = Field(3, ge=0)
    """How often an idle owner is woken before a user's message refills the budget."""

    engine: str = "agent"
    """Engine of a child whose start names none."""
    model: str | None = None
    """Model of the agent engine, in pydantic-ai's words (`deepseek:deepseek-chat`), or `offline`."""
    model_tries: int = Field(8, ge=1, le=100)
    """How often a model call is tried where its failure may pass (429, 5xx, a broken connection, silence)."""
    model_first_pause_ms: int = Field(1_000, ge=1, le=600_000)
    """Pause before a model call is tried the second time; doubles with each try, half of it jittered."""
    model_longest_pause_ms: int = Field(120_000, ge=1, le=3_600_000)
    """Cap on the pause before a model call is tried again; a provider's Retry-After is cut to it."""
    model_silence_ms: int = Field(300_000, ge=50, le=600_000)
    """How long a model call may give no byte; it is tried again, then its child fails with `stalled`."""
    route_calls: int = Field(0, ge=0, le=1_000_000)
    """Model calls of one route (provider and model) at once over all workers; 0 is no bound."""
    route_wait_ms: int = Field(3_600_000, ge=100)
    """How long a model call may wait for room on its route or the end of a pause before its child fails."""
    concurrency: int = Field(100, ge=1, le=100_000)
    """Celery slots of one worker process."""
    inline_children: int = Field(100, ge=0, le=100_000)
    """Children that a worker process runs for waiting parents beside its slots."""
    worker_bytes: int = Field(2 * 1024**3, ge=1)
    """Raw bytes of seeds under work from which on a worker process claims no more; equal ones count once."""
    seed_cache_bytes: int = Field(256 * 1024 * 1024, ge=0)
    """Decoded seeds that a worker keeps, in bytes of their raw form."""
    sweep_ms: int = Field(30_000, ge=100)
    """Pause between two looks of the workers for records whose hints were lost."""
    republish_ms: int = Field(30_000, ge=100)
    """First pause before a queued task is published again; doubles up to ten minutes."""

    webhook_url: str | None = Field(None, repr=False)
    """Where workers send each ending that puts a notice (http or https); needs `webhook_secret`."""
    webhook_secret: SecretStr | None = Field(None, validate_default=True)
    """What signs them: `whsec_` and 24 to 64 bytes in base64; several with spaces between while rotating."""
    webhook_timeout_ms: int = Field(15_000, ge=100, le=60_000)
    """Deadline of one try to send an ending."""
    webhook_first_pause_ms: int = Field(5_000, ge=50, le=3_600_000)
    """Pause before an ending is sent again; five times as long with each failure, up to 2 h, jittered."""
    webhook_give_up_ms: int = Field(86_400_000, ge=1_000, le=604_800_000)
    """How long after its first try an ending is still sent; then it is dropped and counted."""

    @field_validator("webhook_url")
    @classmethod
    def _is_endpoint(cls, url: str | None) -> str | None:
        if url is not None:
            signing.check_endpoint(url)
        return url

    @field_validator("webhook_secret")
    @classmethod
    def _signs(cls, secret: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if secret is not None:
            signing.keys_of(secret.get_secret_value())
        if (secret is None) != (info.data.get("webhook_url") is None) and "webhook_url" in info.data:
            msg = "DSH_TASKS_WEBHOOK_URL and DSH_TASKS_WEBHOOK_SECRET go together"
            raise ValueError(msg)
        return secret

    @property
    def tree_cost_budget_microusd(self) -> int:
        """`tree_cost_budget` in 10^-6 US dollars."""
        return int(self.tree_cost_budget.scaleb(dollars.MICRO))

    @property
    def effective_broker_url(self) -> str | None:
        """The queue's server: `broker_url`, else `redis_url`."""
        return self.broker_url or self.redis_url


def load(**overrides: object) -> Settings:
    """Settings from the environment, then `overrides`. Raises ConfigRefused naming the knob."""
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "settings"
        raise ConfigRefused(f"DSH_TASKS_{name.upper()}", first["msg"].removeprefix("Value error, ")) from None
