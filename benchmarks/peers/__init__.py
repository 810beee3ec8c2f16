"""Keepwarm beside other engines, over prompts that share prefixes: `python -m benchmarks.peers`."""
