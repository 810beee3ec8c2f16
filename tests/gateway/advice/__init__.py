"""Facts about advice."""
