"""Which replica a request goes to, and what became of that: pure, with time and chance given."""
