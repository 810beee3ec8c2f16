"""Facts about `keepwarm eval`."""
