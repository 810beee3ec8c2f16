"""The operators' API, on the admin listener."""
