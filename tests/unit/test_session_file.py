"""A log file that is followed: what is read once, what is read anew, what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest
import zstandard

from dsh_tasks import format as log_format
from dsh_tasks import seed
from dsh_tasks.errors import LimitReached, SeedRefused, SessionRefused
from dsh_tasks.session import Session
from dsh_tasks.session_file import SessionFile
from tests.factories import CANARY, a_log, bytes_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.v4.jsonl"


def grown(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


def test_its_seeds_are_those_of_the_log_read_whole(path: Path) -> None:
    log = a_log(5, tools=2, notices=1, compacted={4: 6}, inherited=2, open_turn=True)
    log_format.write_file(log, path)
    file = SessionFile(path)
    assert file.header == log.header
    assert file.model_route() == log.model_route()
    assert file.seed() == seed.cut(log)
    assert [file.seed(turns) for turns in range(7)] == [seed.window(log, turns) for turns in range(7)]


def test_what_is_added_is_seen_after_a_refresh_wherever_a_write_is_cut(path: Path) -> None:
    data = bytes_of(a_log(6, tools=1, notices=1))
    dice = Random(4)
    file, had = SessionFile(path), data.index(b"\n") + 1
    path.write_bytes(data[:had])
    while had < len(data):
        step = dice.choice([1, 40, 400, 4000])
        grown(path, data[had : had + step])
        had += step
        file.refresh()
        assert file.seed() == seed.cut(log_format.read(path))
    assert file.seed().turns == 6


def test_a_line_is_whole_before_its_end_is_written(path: Path) -> None:
    data = bytes_of(a_log(2))
    at = bytes_of(a_log(1)).rindex(b"\n")
    path.write_bytes(data[:at])
    file = SessionFile(path)
    assert file.seed().turns == 1
    grown(path, data[at : at + 1])
    file.refresh()
    grown(path, data[at + 1 :])
    file.refresh()
    assert file.seed() == seed.cut(a_log(2))


def test_old_turns_are_not_hashed_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_format.write_file(a_log(20, tools=2), path)
    file = SessionFile(path)
    before = file.seed()
    hashed: list[int] = []
    digest_of = seed.digest_of
    monkeypatch.setattr(
        "dsh_tasks.seed.chunks.digest_of", lambda data: hashed.append(len(data)) or digest_of(data)
    )
    grown(path, bytes_of(a_log(21, tools=2))[path.stat().st_size :])
    file.refresh()
    after = file.seed()
    assert hashed == [after.chunks[-1].raw_bytes]
    assert after.chunks[:20] == before.chunks
    assert all(one is other for one, other in zip(after.chunks, before.chunks, strict=False))


def test_a_file_that_was_written_over_is_read_anew(path: Path) -> None:
    log_format.write_file(a_log(5), path)
    file = SessionFile(path)
    assert file.seed().turns == 5
    for other in (a_log(2), a_log(9, tools=1), a_log(4, session_id="other")):
        log_format.write_file(other, path)
        file.refresh()
        assert file.seed() == seed.cut(other)
        assert file.header.id == other.header.id


def test_zstd_and_v0_files_are_followed_as_well(path: Path) -> None:
    path.write_bytes(log_format.pack(a_log(2, tools=1)))
    file = SessionFile(path)
    assert file.seed() == seed.cut(a_log(2, tools=1))
    more = bytes_of(a_log(4, tools=1))[len(bytes_of(a_log(2, tools=1))) :]
    grown(path, zstandard.ZstdCompressor().compress(more))
    file.refresh()
    assert file.seed() == seed.cut(a_log(4, tools=1))
    v0 = b'{"type":"session","version":0,"id":"s","createdAt":1}\n'
    turn = b'{"type":"turn/start","data":{"turn":1}}\n'
    end = b'{"type":"turn/end","data":{"turn":1,"reason":{"kind":"completed"}}}\n'
    path.write_bytes(v0 + turn)
    file.refresh()
    assert file.seed().turns == 0
    grown(path, end)
    file.refresh()
    assert file.seed().turns == 1


def test_a_file_for_windows_keeps_no_more_than_these(path: Path) -> None:
    log = a_log(30, tools=1)
    log_format.write_file(log, path)
    file = SessionFile(path, keep=3)
    assert file.seed(3) == seed.window(log, 3)
    assert file.seed(1) == seed.window(log, 1)
    with pytest.raises(SeedRefused):
        file.seed()
    with pytest.raises(SeedRefused):
        file.seed(4)


@pytest.mark.parametrize("unpacked_bytes", [0, 3_000, 20_000])
def test_a_window_is_the_same_however_much_of_it_waits_unpacked(
    path: Path, monkeypatch: pytest.MonkeyPatch, unpacked_bytes: int
) -> None:
    monkeypatch.setattr("dsh_tasks.seed.maker._UNPACKED_BYTES", unpacked_bytes)
    data = bytes_of(a_log(9, tools=2, notices=1, compacted={6: 20}))
    file, had = SessionFile(path, keep=4), 0
    for end in (len(data) // 3, len(data) // 2, len(data)):
        grown(path, data[had:end])
        had = end
        file.refresh()
        log = log_format.read(path)
        assert [file.seed(turns) for turns in (2, 4, 1)] == [seed.window(log, turns) for turns in (2, 4, 1)]


def test_a_refusal_names_the_line_and_passes_with_its_cause(path: Path) -> None:
    data = bytes_of(a_log(2))
    path.write_bytes(data + b'{"type":"unheard/of","seq":0,"time":1,"data":{}}\n')
    file = SessionFile(path)
    with pytest.raises(SessionRefused) as caught:
        file.refresh()
    assert caught.value.facts["line"] == data.count(b"\n") + 1
    path.write_bytes(data)
    assert file.seed().turns == 2


def test_rows_of_the_open_turn_are_checked_and_never_kept(path: Path) -> None:
    log = a_log(2, open_turn=True)
    log_format.write_file(log, path)
    assert CANARY not in str(SessionFile(path).seed().events)
    grown(path, b'{"type":"turn/end","seq":%d,"time":1e999,"data":{}}\n' % len(log.events))
    with pytest.raises(SessionRefused):
        SessionFile(path).refresh()


@pytest.mark.parametrize("data", [b"", b"\n", b"[]\n", b"{}\n", b"\x28\xb5\x2f\xfd", b"\xff\n"])
def test_what_is_no_log_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(SessionRefused):
        SessionFile(path).refresh()
    with pytest.raises(SessionRefused):
        SessionFile(path.with_name("nothing")).seed()


def test_a_seed_over_its_cap_names_the_window_that_fits(path: Path) -> None:
    log_format.write_file(a_log(9, tools=1), path)
    file = SessionFile(path)
    sizes = [file.seed(turns).raw_bytes for turns in range(10)]
    with pytest.raises(LimitReached) as caught:
        file.seed(max_bytes=sizes[4])
    assert "fork-lite of 4" in caught.value.message
    with pytest.raises(LimitReached) as caught:
        file.seed(max_bytes=10)
    assert "even its last turn is larger" in caught.value.message


def test_many_threads_may_ask_while_the_file_grows(path: Path) -> None:
    whole = a_log(40, tools=1)
    data = bytes_of(whole)
    header = data.index(b"\n") + 1
    path.write_bytes(data[:header])
    file = SessionFile(path)
    faults: list[BaseException] = []
    done = threading.Event()
    cuts = {
        seed.cut(Session(whole.header, whole.events[: turn.end_seq + 1])).digest for turn in whole.turns()
    }  # type: ignore[operator]
    cuts.add(seed.empty().digest)

    def ask() -> None:
        try:
            while not done.is_set():
                file.refresh()
                assert file.seed().digest in cuts
        except BaseException as error:
            faults.append(error)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    dice, had = Random(1), header
    while had < len(data):
        step = dice.randrange(1, 900)
        grown(path, data[had : had + step])
        had += step
    done.set()
    for asker in askers:
        asker.join(60)
    assert faults == []
    file.refresh()
    assert file.seed() == seed.cut(whole)
