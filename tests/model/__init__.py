"""The state machine of tasks as a pure model, and the tests that drive it beside the real scripts."""
