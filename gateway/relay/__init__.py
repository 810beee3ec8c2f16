"""Requests that another server answers: bytes in, bytes out, and what they cost read beside."""
