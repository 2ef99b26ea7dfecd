"""Make the dictionary that chunks are compressed with, from logs that the harness' runtime wrote.

    python tools/train_dictionary.py LOG..

Chunks name it by its id, so those that were stored with one can only be read with it: a new one needs a
new id and a new file beside the old one.
"""
# ruff: noqa: INP001 -- a script beside the package, not a part of it

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import zstandard

from dsh_tasks.seed import unpack
from dsh_tasks.session_file import SessionFile

ID = 0x64736801
SIZE = 8192
"""Larger ones made no smaller chunks."""


def main(logs: list[str]) -> None:
    seeds = [SessionFile(log).seed() for log in logs]
    samples = [unpack(chunk.data, chunk.digest, chunk.raw_bytes) for seed in seeds for chunk in seed.chunks]
    trained = zstandard.train_dictionary(SIZE, samples, dict_id=ID)
    target = Path(str(files("dsh_tasks.data") / "chunks.zdict"))
    target.write_bytes(trained.as_bytes())
    print(f"{len(samples)} turns, {len(trained.as_bytes())} bytes: {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
