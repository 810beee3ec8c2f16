"""The engine: pool, tree, scheduler, attention and process."""
