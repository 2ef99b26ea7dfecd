"""Engines: what executes a child. An engine knows its Run and nothing of stores, queues or leases."""
