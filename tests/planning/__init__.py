"""Facts about plans."""
