"""What is answered is held by as many replicas as the settings ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from dsh_tasks.errors import StoreUnavailable
from dsh_tasks.settings import Settings
from dsh_tasks.store import Link, Store, connect, embedded
from dsh_tasks.task import Status
from tests.conftest import server_binary
from tests.store.test_records import a_task, done, running, settle, status_of
from tests.waiting import wait_until


@pytest.fixture
def replica(server: embedded.Server) -> Iterator[redis.Redis]:
    """A second server that follows the first."""
    other = embedded.start(binary=server_binary())
    client = redis.Redis(port=other.port)
    client.execute_command("REPLICAOF", "127.0.0.1", str(server.port))
    wait_until(lambda: client.info("replication")["master_link_status"] == "up", "the replica follows")
    yield client
    client.execute_command("REPLICAOF", "NO", "ONE")
    client.close()
    other.stop()


def test_an_answer_waits_for_the_replica_and_says_so_where_there_is_none(
    settings: Settings, replica: redis.Redis
) -> None:
    async def main() -> None:
        assert settings.redis_url is not None
        link = Link(connect(settings.redis_url, timeout_ms=2_000), timeout_ms=2_000, replicas=1)
        store = Store(link, settings)
        new = a_task()
        fence = await running(store, new)
        assert replica.hget(store.keys.task(new.id), "status") in (b"queued", b"running")
        await settle(store, new, fence, done())
        assert replica.hget(store.keys.task(new.id), "status") == b"completed"

        replica.execute_command("REPLICAOF", "NO", "ONE")
        alone = a_task()
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            await store.submit(alone)
        plain = Store(Link(link.client, timeout_ms=2_000), settings)
        again = await plain.submit(alone)
        assert (again.task_id, again.repeated) == (alone.id, True), "it was written all the same"
        assert await status_of(plain, alone.id) is Status.QUEUED
        await link.close()

    asyncio.run(main())
