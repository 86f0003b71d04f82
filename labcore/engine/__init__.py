"""Requests in, tokens out: schedule, execute, update."""
