"""What a request must look like to be served at all: every value in its range, every number finite, every id known.

Owns nothing. Rule: what passes can always be computed, so nothing a client sends fails a step that others share. The
gateway's APIs have narrower limits of their own; these are the ones that the arithmetic needs.
"""

from __future__ import annotations

from engine.errors import PromptTooLong, RequestRefused
from engine.messages import ModelCard, Sampling, Submit
from engine.request import TOKEN_BYTES

LIMITS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "repetition_penalty": (0.01, 100.0),
    "logprobs": (0, 2**31),
}
BIAS = 100.0  # in either direction: with it a token is as good as forced or forbidden


def check(submit: Submit, card: ModelCard) -> None:
    """Raise RequestRefused, naming the field, unless this engine can serve the request."""
    prompt = len(submit.tokens) // TOKEN_BYTES
    if prompt == 0:
        raise RequestRefused("The prompt has no tokens.", field="messages")
    _within("max_tokens", submit.max_tokens, 0, 2**31)
    _fits(prompt, submit.max_tokens, card)
    highest = max(memoryview(submit.tokens).cast("I"))
    if highest >= card.vocab_size:
        raise RequestRefused(f"Token id {highest} is not below {card.vocab_size}.", field="messages")
    _sampling(submit.sampling, card.vocab_size)
    _within("min_tokens", submit.sampling.min_tokens, 0, submit.max_tokens)
    for token in submit.stop_ids:
        _known("stop_token_ids", token, card.vocab_size)
    if submit.prompt_logprobs is not None:
        _within("prompt_logprobs", submit.prompt_logprobs, 0, 2**31)
    if submit.grammar and not card.eos_ids:
        raise RequestRefused(
            "This model names no token that ends an answer, so an answer cannot be confined to a grammar.",
            field="response_format",
        )


def _fits(prompt: int, answer: int, card: ModelCard) -> None:
    limit = min(card.max_model_len, card.blocks * card.block_tokens)
    if prompt + answer > limit:
        raise PromptTooLong.of(prompt=prompt, answer=answer, limit=limit)


def _sampling(sampling: Sampling, vocab: int) -> None:
    for field, (lowest, highest) in LIMITS.items():
        value = getattr(sampling, field)
        if value is not None:
            _within(field, value, lowest, highest)
    for token, bias in sampling.logit_bias.items():
        _known("logit_bias", token, vocab)
        _within("logit_bias", bias, -BIAS, BIAS)


def _known(field: str, token: int, vocab: int) -> None:
    if not 0 <= token < vocab:
        raise RequestRefused(f"{field} names token {token}, and the model's tokens are 0 to {vocab - 1}.", field=field)


def _within(field: str, value: float, lowest: float, highest: float) -> None:
    if not lowest <= value <= highest:  # not a number is in no range
        raise RequestRefused(f"{field} must be from {lowest:g} to {highest:g}, not {value:g}.", field=field)
