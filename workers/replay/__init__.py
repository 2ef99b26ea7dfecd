"""Replay: a child run again from its own log, with recorded answers of model and tools, without network."""
