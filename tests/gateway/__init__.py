"""Facts about the gateway, against a scripted backend."""
