"""`keepwarm doctor`: what breaks the prefix of an application's requests, found without a server."""
