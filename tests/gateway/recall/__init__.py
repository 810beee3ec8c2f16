"""Facts about what is remembered of requests."""
