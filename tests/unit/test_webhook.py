"""An ending as a signed CloudEvent: what it holds, what it never holds, what signs it."""

from __future__ import annotations

import base64
import json
from datetime import datetime

import pytest

from dsh_tasks import signing
from dsh_tasks.cli.checks import webhook_finding
from dsh_tasks.errors import ConfigRefused
from dsh_tasks.notice import Notice
from dsh_tasks.settings import Settings, load
from dsh_tasks.store import OutboxState
from dsh_tasks.store.fitness import Grade
from dsh_tasks.task import Cause, Status
from dsh_tasks.webhook import Ending, Endpoint, event
from tests.receiver import SECRET, Got
from workers.hooks import came_of
from workers.http_post import Answer

OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()
URL = "https://hooks.example/token-in-the-path?key=also"


def an_ending(**given: object) -> Ending:
    fields: dict[str, object] = {
        "id": "notice-subagent-1",
        "task_id": "subagent-1",
        "label": "count files",
        "status": Status.FAILED,
        "cause": Cause.ERROR,
        "at_ms": 1_700_000_000_123,
    }
    return Ending(Notice(**(fields | given)), "parent", 1)  # type: ignore[arg-type]


def test_a_signature_is_the_one_of_the_specifications_own_libraries() -> None:
    """The vector that the reference libraries test themselves by."""
    keys = signing.keys_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    made = signing.signature(
        keys, message_id="msg_p5jXN8AQM9LWM0D4loKWxJek", at_s=1614265330, body=b'{"test": 2432232314}'
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_a_secret_is_rotated_both_sign() -> None:
    endpoint = Endpoint.of(Settings(webhook_url=URL, webhook_secret=f"{SECRET} {OTHER}"))
    assert endpoint is not None
    headers, body = endpoint.message(an_ending(), at_s=1_700_000_001)
    got = Got("/", headers, body)
    assert got.is_signed_by(SECRET) and got.is_signed_by(OTHER)
    assert not Got("/", headers, body + b" ").is_signed_by(SECRET)
    assert not Got("/", headers | {"webhook-timestamp": "1700000002"}, body).is_signed_by(SECRET)


def test_an_event_is_a_structured_cloudevent_with_the_notice_in_it() -> None:
    assert json.loads(event(an_ending(), "/dsh-tasks/dsh")) == {
        "specversion": "1.0",
        "id": "notice-subagent-1",
        "source": "/dsh-tasks/dsh",
        "type": "dev.dsh-tasks.task.ended",
        "subject": "subagent-1",
        "time": "2023-11-14T22:13:20.123Z",
        "datacontenttype": "application/json",
        "data": {
            "task_id": "subagent-1",
            "label": "count files",
            "status": "failed",
            "cause": "error",
            "owner": "parent",
            "at_ms": 1_700_000_000_123,
        },
    }
    assert datetime.fromisoformat("2023-11-14T22:13:20.123Z").timestamp() == 1_700_000_000.123


def test_an_event_is_small_whatever_the_label() -> None:
    ending = Ending(an_ending(label='"\\\x01' * 4_000 + "ü" * 4_000).notice, "\x01" * 1_024, 1)
    made = event(ending, "/dsh-tasks/dsh")
    assert len(made) < 10_000
    json.loads(made)


def test_the_same_ending_has_the_same_bytes_at_each_try() -> None:
    assert event(an_ending(), "/x") == event(Ending(an_ending().notice, "parent", 9), "/x")


@pytest.mark.parametrize(
    "secret",
    ["", "plain", "whsec_", "whsec_%%%", "whsec_c2hvcnQ=", "whsec_" + base64.b64encode(b"x" * 65).decode()],
)
def test_a_secret_that_is_none_is_refused_at_load_and_not_shown(secret: str) -> None:
    with pytest.raises(ConfigRefused, match="DSH_TASKS_WEBHOOK_SECRET") as refused:
        load(webhook_url=URL, webhook_secret=secret)
    assert len(secret) < 7 or secret not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://a/b",
        "http://",
        "http://u:p@host/",
        "http://a/ b",
        "http://a/#f",
        "http://ä/",
    ],
)
def test_a_url_that_is_no_endpoint_is_refused_at_load_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigRefused, match="DSH_TASKS_WEBHOOK_URL") as refused:
        load(webhook_url=url, webhook_secret=SECRET)
    assert len(url) < 8 or url not in str(refused.value)


@pytest.mark.parametrize("given", [{"webhook_url": URL}, {"webhook_secret": SECRET}])
def test_url_and_secret_go_together(given: dict[str, str]) -> None:
    with pytest.raises(ConfigRefused, match="go together"):
        load(**given)


def test_neither_url_nor_secret_is_shown_by_what_holds_them() -> None:
    settings = Settings(webhook_url=URL, webhook_secret=SECRET)
    endpoint = Endpoint.of(settings)
    for shown in (repr(settings), str(settings), repr(endpoint), signing.shown(URL)):
        assert "token-in-the-path" not in shown
        assert SECRET.removeprefix("whsec_") not in shown
    with pytest.raises(ValueError) as refused:
        Settings(webhook_url="ftp://token-in-the-path", webhook_secret="whsec_not!really")
    assert "token-in-the-path" not in str(refused.value)
    assert "not!really" not in str(refused.value)


def test_an_endpoint_is_another_one_when_url_or_secret_is() -> None:
    made = [
        Endpoint.of(Settings(webhook_url=url, webhook_secret=secret))
        for url in (URL, URL + "2")
        for secret in (SECRET, OTHER)
    ]
    assert len({one.digest for one in made if one}) == 4


def test_only_2xx_is_delivered_and_only_410_is_the_end() -> None:
    came = {
        status: came_of(Answer(status))
        for status in (0, 200, 204, 299, 301, 302, 307, 400, 404, 410, 429, 500)
    }
    assert {status for status, what in came.items() if what == "delivered"} == {200, 204, 299}
    assert {status for status, what in came.items() if what == "gone"} == {410}


STILL = OutboxState(True, 0, 0, 0, 0, 0, "", 0, 0, 0)
SET = Settings(webhook_url=URL, webhook_secret=SECRET)


@pytest.mark.parametrize(
    ("settings", "changes", "grade", "words"),
    [
        (Settings(), {"wanted": False}, Grade.OK, "not set"),
        (Settings(), {}, Grade.OK, "not in this environment"),
        (SET, {"delivered": 3, "delivered_ms": 5}, Grade.OK, "https://hooks.example; 3 sent, 0 waiting"),
        (SET, {"waiting": 2, "failed_ms": 9, "failed_why": "HTTP 500"}, Grade.WARNING, "2 waiting.*HTTP 500"),
        (SET, {"wanted": False}, Grade.WARNING, "no worker sends"),
        (SET, {"wanted": False, "gone_ms": 9}, Grade.WARNING, "410"),
        (Settings(webhook_url="http://far/x", webhook_secret=SECRET), {}, Grade.WARNING, "in the clear"),
        (Settings(webhook_url="http://localhost:1/x", webhook_secret=SECRET), {}, Grade.OK, "localhost"),
    ],
)
def test_doctor_says_whether_it_is_set_and_whether_something_is_undelivered(
    settings: Settings, changes: dict[str, object], grade: Grade, words: str
) -> None:
    import re
    from dataclasses import replace

    finding = webhook_finding(settings, replace(STILL, **changes))  # type: ignore[arg-type]
    assert finding.grade is grade
    assert re.search(words, finding.seen), finding.seen
    assert "token-in-the-path" not in finding.seen + finding.mend
