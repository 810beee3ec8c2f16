"""Token ids in, tokens out, and only the uncached suffix computed. Knows no HTTP and no Redis."""
