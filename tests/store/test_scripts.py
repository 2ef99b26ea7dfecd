"""Every Lua header equals its wrapper's use, and the scripts keep their rules on a real server."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from dsh_tasks.store.scripts import NAMES, load

FOLDER = files("dsh_tasks.store") / "lua"


def test_every_script_file_is_known_by_name() -> None:
    there = {entry.name.removesuffix(".lua") for entry in FOLDER.iterdir() if entry.name.endswith(".lua")}
    assert there == {*NAMES, "lib"}


@pytest.mark.parametrize("name", NAMES)
def test_a_script_begins_with_its_contract(name: str) -> None:
    lines = (FOLDER / f"{name}.lua").read_text("utf-8").splitlines()
    head = [line for line in lines if not line.startswith("#!")]
    assert head[0].startswith(f"-- {name}: ")
    assert head[1].startswith("-- KEYS ")
    assert head[2].startswith("-- ARGV ")
    assert any(line.startswith("-- returns ") for line in head[3:9])


@pytest.mark.parametrize("name", NAMES)
def test_a_header_names_as_many_keys_as_the_script_uses(name: str) -> None:
    text = (FOLDER / f"{name}.lua").read_text("utf-8")
    header = next(line for line in text.splitlines() if line.startswith("-- KEYS "))
    used = [int(number) for number in re.findall(r"KEYS\[(\d+)\]", text)]
    assert max(used, default=0) <= len(header.split()) - 2


@pytest.mark.parametrize("name", ["settle", "kill", "ack", "reap", "hand_back"])
def test_what_ends_work_may_run_on_a_full_server(name: str) -> None:
    assert load(name).text.startswith("#!lua flags=allow-oom\n")
