"""Which convention a model follows: the operator's word, or what its chat template spells."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

from gateway.errors import ConfigError
from gateway.tools import ToolFormat
from gateway.tools.generic import Generic
from gateway.tools.hermes import OPEN as HERMES_OPEN
from gateway.tools.hermes import Hermes
from gateway.tools.llama3 import TAG, Llama3
from gateway.tools.mistral import ARGS, Mistral
from gateway.tools.mistral import OPEN as MISTRAL_OPEN

Setting = Literal["auto", "hermes", "llama3", "mistral", "json"]
SETTINGS: tuple[str, ...] = get_args(Setting)
_TOOLS = re.compile(r"\btools\b")


def format_of(template_source: str, setting: str = "auto", *, ids: Mapping[str, int] | None = None) -> ToolFormat:
    """Return the convention that `setting` names. `ids` holds the ids of markers that are special tokens, if known."""
    name = spelled_in(template_source) if setting == "auto" else setting
    match name:
        case "hermes":
            return Hermes(ids)
        case "llama3":
            return Llama3(ids)
        case "mistral":
            return Mistral(ids, named=ARGS in template_source)
        case "json":
            return Generic(ids)
    raise ConfigError(f"There is no tool format {setting!r}; there are {', '.join(SETTINGS)}.")


def spelled_in(template_source: str) -> str:
    """Return the name of the convention that a chat template spells."""
    if HERMES_OPEN in template_source:
        return "hermes"
    if MISTRAL_OPEN in template_source:
        return "mistral"
    if TAG in template_source or ("ipython" in template_source and '"parameters"' in template_source):
        return "llama3"
    return "json" if _TOOLS.search(template_source) else "hermes"
