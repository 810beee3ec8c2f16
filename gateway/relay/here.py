"""The bundled engine as one candidate beside upstreams that serve its model.

Rule: when it is chosen the API's own handler answers and tells of the exchange; routing only hears when the prompt was
computed, what was read, and how it ended.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.record import Record
from gateway.relay.attempt import Attempt
from gateway.relay.told_record import routed_of
from gateway.relay.usage import Reported


class Here(Attempt):
    """A request that the bundled engine answers. A `Route` of the `Ask` that the handler makes."""

    def begun(self) -> None:
        """Hear that the first token has come."""
        self.first_token_at = self.computed()

    def told(self, record: Record) -> Record:
        """Hear how the exchange ended, and say in its record where it was routed."""
        if record.prompt is not None:
            self.tap.begun = True
            facts = record.prompt
            self.tap.heard(Reported(prompt=facts.prompt, read=facts.read, output=record.generated))
        return replace(record, routed=routed_of(self))
