"""What cannot be planned for."""

from __future__ import annotations

from gateway.errors import GatewayError


class Unplannable(GatewayError):
    """A configuration or an option that no plan can be made of; the message names the field and what would do."""
