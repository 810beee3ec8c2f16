"""Facts and the numbers made of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.api.extension import extension_of
from gateway.api.openai_answers import usage_of
from gateway.usage import Facts, projections


def facts(prompt: int, read: int, generated: int, *, write: int = 0, projected: int | None = None) -> Facts:
    """Facts with times that do not matter."""
    return Facts(
        prompt=prompt,
        read=read,
        write=write,
        generated=generated,
        projected=projected,
        queue_s=0.0015,
        prefill_s=0.02,
        decode_s=1.0,
        first_token_s=0.0215,
    )


@given(prompt=st.integers(1, 200), share=st.floats(0, 0.99), generated=st.integers(1, 50))
def test_projection_counts_equal_their_definition(prompt: int, share: float, generated: int) -> None:
    """The closed forms are the sums they stand for."""
    read = int(prompt * share)
    counts = projections(facts(prompt, read, generated))
    assert counts.done == (prompt - read) + generated - 1
    assert counts.without_prefix_cache == prompt + generated - 1
    assert counts.without_kv_cache == sum(prompt + step for step in range(generated))


def test_recomputing_shows_in_done_only() -> None:
    """What the engine really projected is reported, whatever the formula expects."""
    assert projections(facts(10, 4, 3, projected=15)).done == 15


def test_no_answer_projects_the_prompt() -> None:
    """With nothing generated only the prompt was computed."""
    counts = projections(facts(10, 4, 0))
    assert (counts.done, counts.without_prefix_cache, counts.without_kv_cache) == (6, 10, 0)


@given(prompt=st.integers(1, 99), cut=st.data())
def test_prompt_is_read_write_and_uncached(prompt: int, cut: st.DataObject) -> None:
    """Every prompt token is counted once."""
    read = cut.draw(st.integers(0, prompt))
    write = cut.draw(st.integers(0, prompt - read))
    known = facts(prompt, read, 1, write=write)
    assert known.read + known.write + known.uncached == prompt
    assert known.computed == known.write + known.uncached


def test_openai_counts_cached_as_part_of_the_prompt() -> None:
    """Cached tokens are a part of prompt_tokens, and the total is the sum."""
    usage = usage_of(facts(10, 4, 3))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (10, 3, 13)
    assert usage.prompt_tokens_details.cached_tokens == 4


def test_times_are_milliseconds() -> None:
    """Seconds inside, milliseconds on the wire."""
    timings = extension_of(facts(10, 4, 3)).timings
    assert (timings.queue_ms, timings.prefill_ms, timings.decode_ms) == (1.5, 20.0, 1000.0)
    assert timings.time_to_first_token_ms == 21.5
