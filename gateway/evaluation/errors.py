"""What cannot be measured."""

from __future__ import annotations

from gateway.errors import GatewayError


class Unmeasurable(GatewayError):
    """An option, a text or a model with which nothing can be measured; the message names it and what would do."""
