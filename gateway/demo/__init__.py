"""`keepwarm demo`: the first success of a new user, two questions and a conversation over one long text.

A client like any other: it speaks HTTP to a server and knows nothing of the gateway's insides.
"""

from __future__ import annotations

from gateway.demo.command import run

__all__ = ["run"]
