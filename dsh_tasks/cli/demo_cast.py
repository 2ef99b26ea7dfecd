"""Cast: which children the demo delegates, and in which words for the offline model and for a real one."""

from __future__ import annotations

from dataclasses import dataclass

SPAWN, FORK, FORK_LITE = "subagent", "subagent_fork", "subagent_fork_lite"
"""The delegation tools of the default settings: one for each provider."""


@dataclass(frozen=True, slots=True)
class Part:
    """One call of a delegation tool."""

    tool: str
    label: str
    why: str
    """What the answer shows, told beside it."""
    offline: str
    """The prompt for the offline model, whose directives make it wait, delegate or fail."""
    real: str
    """The prompt for a real model."""
    in_background: bool = True
    is_killed: bool = False

    def prompt(self, *, offline: bool) -> str:
        """What the child is asked."""
        return self.offline if offline else self.real


_HONESTLY = "Answer in one sentence. If you were never told, say that you cannot know."

PARTS = (
    Part(
        FORK_LITE,
        "recall the budget",
        "2 turns are enough",
        offline="!wait 2\nWhat is the budget?",
        real=f"What is the budget? {_HONESTLY}",
    ),
    Part(
        SPAWN,
        "delegate further",
        "its own child stands below it in the tree",
        offline='!delegate subagent {"description": "multiply", "prompt": "!wait 2\\n!say 42"}',
        real="Call the subagent tool once, in the foreground, and have it tell what 6 times 7 is. "
        "Then repeat its answer in one sentence.",
    ),
    Part(
        SPAWN,
        "take far too long",
        "killed on the way",
        offline="!wait 60",
        real="Write the whole numbers from 1 to 3000, one a line, without leaving any out.",
        is_killed=True,
    ),
    Part(
        FORK,
        "recall the password",
        "it was said in the turn that is still open, so nobody may know it",
        offline="!wait 1\nWhat is the password?",
        real=f"What is the password? {_HONESTLY}",
    ),
    Part(
        FORK,
        "recall the codeword",
        "said in turn 1, which a fork sees",
        offline="!wait 1\nWhat is the codeword?",
        real=f"What is the codeword? {_HONESTLY}",
        in_background=False,
    ),
    Part(
        SPAWN,
        "guess the codeword",
        "a spawned child sees nothing of its parent",
        offline="What is the codeword?",
        real=f"What is the codeword? {_HONESTLY}",
        in_background=False,
    ),
    Part(
        FORK_LITE,
        "recall the codeword, too",
        "turn 1 lies outside its window of 2 turns",
        offline="What is the codeword?",
        real=f"What is the codeword? {_HONESTLY}",
        in_background=False,
    ),
)
"""In the order of their calls: what runs in the background goes on while the others are awaited."""
