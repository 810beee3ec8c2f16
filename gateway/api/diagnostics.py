"""What a comparison told, in the providers' own words. Pure.

Rules: only words that their SDKs know, because those read an unknown one as another; what they have no word for is
`unavailable`. Both speak of the change between two requests: Anthropic's whether or not the cache was hit, OpenAI's of
a miss only where there was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.compare import Reason
from gateway.miss import Comparison

_ANTHROPIC: Final[Mapping[Reason, str]] = {
    "model": "model_changed",
    "system": "system_changed",
    "tools": "tools_changed",
    "messages": "messages_changed",
}
_OPENAI: Final[Mapping[Reason, str]] = {
    "model": "model_changed",
    "tools": "tools_changed",
    "system": "input_changed",
    "messages": "input_changed",
}
_SETTINGS: Final[Mapping[str, str]] = {
    "response_format": "text_format_changed",
    "reasoning_effort": "reasoning_effort_changed",
    "verbosity": "verbosity_changed",
    "service_tier": "service_tier_changed",
}
UNAVAILABLE: Final = "unavailable"


class CacheMissReason(msgspec.Struct, frozen=True, kw_only=True):
    """Anthropic: what changed, and about how many tokens that cost."""

    type: str
    cache_missed_input_tokens: int | UnsetType = UNSET


class CacheDiagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI: how the comparison ended."""

    type: str
    reason: str | UnsetType = UNSET
    cache_missed_tokens: int | UnsetType = UNSET
    comparison_reusable_tokens: int | UnsetType = UNSET


def anthropic_reason(comparison: Comparison | None) -> CacheMissReason | None:
    """Say what changed since the earlier message; None where nothing did."""
    if comparison is None:
        return CacheMissReason(type=UNAVAILABLE)
    if not comparison.earlier or comparison.divergence is None:
        return CacheMissReason(type="previous_message_not_found")
    divergence = comparison.divergence
    if divergence.reason in {"none", "new"}:
        return None
    word = _ANTHROPIC.get(divergence.reason)
    if word is None:
        return CacheMissReason(type=UNAVAILABLE)
    return CacheMissReason(type=word, cache_missed_input_tokens=divergence.until - divergence.token)


def openai_diagnostics(comparison: Comparison | None) -> CacheDiagnostics:
    """Say whether the comparison found a miss, and its first cause."""
    if comparison is None:
        return CacheDiagnostics(type=UNAVAILABLE)
    if not comparison.earlier or comparison.divergence is None:
        return CacheDiagnostics(type="comparison_response_not_found")
    divergence = comparison.divergence
    reason = _openai_reason(comparison)
    if reason is None:  # a miss then is the memory's or the template's, for which there is no word
        hit = comparison.read and divergence.reason != "template"
        return CacheDiagnostics(type="cache_hit" if hit else UNAVAILABLE)
    lost = divergence.until if comparison.partition else divergence.until - divergence.token
    return CacheDiagnostics(
        type="cache_miss", reason=reason, cache_missed_tokens=lost, comparison_reusable_tokens=divergence.token
    )


def _openai_reason(comparison: Comparison) -> str | None:
    assert comparison.divergence is not None
    reason = comparison.divergence.reason
    if reason != "model" and comparison.partition:
        return "prompt_cache_key_changed"
    if comparison.divergence.compacted:
        return "context_compacted"
    shaping = [_SETTINGS[name] for name in _SETTINGS if name in comparison.settings]
    if reason == "template" and shaping:  # the parts are the same, so what the template asked for is the difference
        return shaping[0]
    return _OPENAI.get(reason)
