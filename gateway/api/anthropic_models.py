"""The models in Anthropic's shape. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

UNKNOWN_DATE: Final = "1970-01-01T00:00:00Z"  # what the API says where a release date is not known


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    """One model. `max_input_tokens` is None while no engine serves it."""

    id: str
    display_name: str
    created_at: str = UNKNOWN_DATE
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None = None


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of models, always the only one."""

    data: Sequence[ModelInfo]
    has_more: bool = False
    first_id: str | None
    last_id: str | None


_json = msgspec.json.Encoder().encode


def model_info(name: str, max_input_tokens: int | None) -> bytes:
    """Shape one model."""
    return _json(_info(name, max_input_tokens))


def model_page(models: Sequence[tuple[str, int | None]]) -> bytes:
    """Shape the list of models, each a name and how many tokens it takes."""
    data = tuple(_info(name, limit) for name, limit in models)
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return _json(ModelPage(data=data, first_id=first, last_id=last))


def _info(name: str, max_input_tokens: int | None) -> ModelInfo:
    return ModelInfo(id=name, display_name=name, max_input_tokens=max_input_tokens)
