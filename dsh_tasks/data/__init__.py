"""Files that ship with the package: a real parent session log to try things on, a dictionary for chunks.

`parent.session.v4.jsonl` was written by the DeepSeek Harness runtime 0.2.1rc2 (profile
`sdk-minimal`) against a scripted model, and was copied while a tool ran: three completed turns, then
an open one. `tools/make_parent_session.py` makes it again. Its facts, each in a sentence
`The <noun> is <value>.`:

    turn 1     codeword   marmalade      said by the user
    turn 2     budget     4200 euros     read from a file by a tool, repeated by the assistant
    turn 3     deadline   Friday         said by the user
    turn 4     password   swordfish      said by the user; this turn is open, so no child may know it
"""

from importlib.resources import files


def chunk_dictionary() -> bytes:
    """What chunks of seeds are compressed with: the words that every log has (tools/train_dictionary.py)."""
    return (files("dsh_tasks.data") / "chunks.zdict").read_bytes()
