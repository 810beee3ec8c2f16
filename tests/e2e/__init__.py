"""The whole path: real processes, a real engine, the official SDK."""
