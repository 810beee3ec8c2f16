"""The prefix store: chain, retention and tree, against a slow truth."""
