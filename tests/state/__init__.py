"""Shared state: what operators decide, kept in SQLite or Redis."""
