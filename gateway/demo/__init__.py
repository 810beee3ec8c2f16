"""`keepwarm demo`: two questions and a conversation over one long text; with `--traffic`, an hour of three tenants.

A client like any other: it speaks HTTP to a server and knows nothing of the gateway's insides.
"""

from __future__ import annotations

from gateway.demo.command import run
from gateway.demo.traffic import run_traffic

__all__ = ["run", "run_traffic"]
