"""Upstreams that misbehave: what clients see, and what is counted."""
