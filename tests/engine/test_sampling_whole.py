"""Sampling through the whole engine, over a scripted model: cold, warm or in a crowd, one seed is one answer."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.chunk import Chunk, Outcome
from engine.messages import Sampling
from engine.runner import Runner
from engine.sampler import Draw, sample
from engine.weighing import Weighing, weighs
from tests.engine.workbench import VOCAB, Bench, ScriptedRunner, prefix_marks

BLOCK = 4
TRUNK = [7, 3, 7, 7, 1, 9, 3, 3, 40, 2]


def logits_after(tokens: Items[int]) -> torch.Tensor:
    """The script: logits [vocab] that depend on every token so far."""
    seed = int.from_bytes(prefix_marks(tokens)[-1][:4], "little")
    return torch.from_numpy(np.random.default_rng(seed).normal(scale=2.0, size=VOCAB)).float()


class Drawing(ScriptedRunner):
    """The scripted model, whose logits go the way that a real model's go."""

    def run(self, chunks: Items[Chunk]) -> list[Outcome]:
        super().run(chunks)  # insists that each slot read is the prefix's own
        texts = {id(chunk): np.frombuffer(bytes(chunk.sequence.tokens), dtype="<u4").tolist() for chunk in chunks}
        scored = [logits_after(texts[id(chunk)][: place + 1]) for chunk in chunks for place in chunk.scored]
        sampled = [logits_after(texts[id(chunk)]) for chunk in chunks if chunk.samples]
        rows = [*scored, *sampled]
        return Runner.outcomes(chunks, torch.stack(rows) if rows else torch.empty(0, VOCAB))


def truth(prompt: list[int], wish: Sampling, count: int, stops: frozenset[int]) -> list[int]:
    """One token after the other, everything counted anew each time."""
    tokens = list(prompt)
    for said in range(count):
        packed = np.asarray(tokens, dtype="<u4").tobytes()
        draw = Draw(
            sampling=wish,
            seed=wish.seed or 0,
            position=len(tokens),
            weighing=Weighing(wish, packed, len(prompt)) if weighs(wish) else None,
            withheld=stops if said < wish.min_tokens else frozenset(),
        )
        (token,) = sample(logits_after(tokens)[None], [draw])
        if token in stops:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def drawing(**more: Any) -> Bench:
    """An engine over the scripted logits."""
    return Bench(Drawing(BLOCK), block_tokens=BLOCK, **more)


WISHES = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 1.8]),
    top_p=st.sampled_from([0.4, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 5]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    seed=st.integers(0, 2**31),
    presence_penalty=st.sampled_from([0.0, 1.2, -0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.4]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -2.0, 3.0]), max_size=3),
    min_tokens=st.integers(0, 5),
)
ASKED = st.tuples(
    st.integers(1, len(TRUNK)), st.lists(st.integers(0, 5), max_size=4), WISHES, st.frozensets(st.integers(0, 30))
)


@given(asked=st.lists(ASKED, min_size=1, max_size=4), step_tokens=st.sampled_from([4, 7, 32]))
@settings(max_examples=60, deadline=None)
def test_whatever_is_asked_for_one_seed_is_one_answer(asked: list[Any], step_tokens: int) -> None:
    """Alone, again from the cache, and side by side in a pool that is too small, each answer is the slow truth."""
    count = 6
    whole = [(TRUNK[:cut] + more, wish, stops) for cut, more, wish, stops in asked]
    wanted = [truth(prompt, wish, count, stops) for prompt, wish, stops in whole]
    warm = drawing()
    for (prompt, wish, stops), answer in zip(whole, wanted, strict=True):
        cold, again = (warm.ask(prompt, max_tokens=count, sampling=wish, stop_ids=tuple(stops)) for _ in "cw")
        assert cold.tokens == again.tokens == answer
        assert again.prefilled.read == len(prompt) - 1
    crowd = drawing(blocks=7, step_tokens=step_tokens, max_num_seqs=4)
    names = [
        crowd.submit(prompt, max_tokens=count, sampling=wish, stop_ids=tuple(stops)) for prompt, wish, stops in whole
    ]
    crowd.run()
    assert [crowd.answers[name].tokens for name in names] == wanted


def test_a_crowd_is_preempted() -> None:
    """Of the pool above, four long answers at once have to give way to each other, and stay what they are."""
    wish = Sampling(temperature=1.0, seed=5, repetition_penalty=1.3)
    crowd = drawing(blocks=7, step_tokens=32, max_num_seqs=4)
    prompts = [[place, *TRUNK] for place in range(4)]
    names = [crowd.submit(prompt, max_tokens=6, sampling=wish) for prompt in prompts]
    crowd.run()
    assert crowd.core.stats().preemptions_total > 0
    assert [crowd.answers[name].tokens for name in names] == [truth(one, wish, 6, frozenset()) for one in prompts]
