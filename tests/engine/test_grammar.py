"""Answers confined to a grammar: compiled beside the steps, followed to the end, refused in the grammar's own words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from llguidance import LLMatcher

from engine.grammar import Compiler, readable
from engine.messages import Sampling
from tests.engine.workbench import GREEDY, Bench, plain_answer, tiny_module
from tests.tiny_model import save_tiny_tokenizer, tiny_tokenizer

B = 4  # block_tokens of the bench
VOCAB = 272  # five more than the tokenizer has: logits of padded models
EOS = 2
TOKENIZER = tiny_tokenizer()
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bonn", "Ulm"]}, "dry": {"type": "boolean"}, "days": {"type": "integer"}},
    "required": ["city", "dry", "days"],
    "additionalProperties": False,
}
JSON = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_flexible": False})
DIGITS = LLMatcher.grammar_from_regex("[0-9]{6}")
BAD = LLMatcher.grammar_from_regex("(a")


@pytest.fixture(scope="module")
def module():
    """One tiny model for the whole file."""
    return tiny_module(vocab_size=VOCAB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tokenizer's folder."""
    return save_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def open_bench(module, folder):
    """Open engines whose grammars are compiled when the test says so."""

    def opened(**fields) -> Bench:
        shape = {"module": module, "block_tokens": B, "vocab_size": VOCAB, "eos_ids": (EOS,), "tokenizer": folder}
        return Bench(**(shape | fields))

    return opened


@pytest.fixture
def bench(open_bench):
    """One such engine."""
    return open_bench()


def compiled(bench: Bench, *ids: str) -> list[str]:
    """Compile what waits, run to the end and return the texts."""
    bench.executor.work()
    bench.run()
    return [TOKENIZER.decode(bench.answers[i].tokens) for i in ids]


@pytest.mark.parametrize("sampling", [GREEDY, *(Sampling(temperature=2.0, seed=seed) for seed in range(4))])
def test_a_schema_is_followed_by_a_model_that_answers_nonsense(bench, sampling):
    """Greedy or hot, the answer parses, validates, and ends by itself."""
    request = bench.submit([10, 11, 12], max_tokens=120, sampling=sampling, grammar=JSON)
    (text,) = compiled(bench, request)
    answer = json.loads(text) if bench.answers[request].finished.reason == "stop" else None
    if answer is None:  # an integer has no longest spelling
        assert re.fullmatch(r'\{"city":"(Bonn|Ulm)","dry":(true|false),"days":-?\d+', text)
    else:
        assert answer["city"] in {"Bonn", "Ulm"} and isinstance(answer["dry"], bool)
        assert isinstance(answer["days"], int) and answer.keys() == SCHEMA["properties"].keys()


@pytest.mark.parametrize("grammar", [DIGITS, "start: /[0-9]{6}/"])
def test_a_complete_grammar_leaves_only_the_end(bench, grammar):
    """Six digits and nothing after them, although no stop token was named and there was room for more."""
    request = bench.submit([10, 11, 12], max_tokens=50, grammar=grammar)
    (text,) = compiled(bench, request)
    assert re.fullmatch("[0-9]{6}", text)
    assert (bench.answers[request].finished.reason, bench.answers[request].finished.generated) == ("stop", 7)


def test_penalties_bend_only_what_the_grammar_leaves(bench):
    """With every digit said once made unlikely and a letter forced, the six digits differ and no letter comes."""
    letter = TOKENIZER.convert_tokens_to_ids("x")
    sampling = Sampling(temperature=0.0, presence_penalty=50.0, logit_bias={letter: 100.0}, logprobs=2)
    request = bench.submit([10, 11, 12], max_tokens=50, sampling=sampling, grammar=DIGITS)
    (text,) = compiled(bench, request)
    assert re.fullmatch("[0-9]{6}", text) and len(set(text)) == 6
    told = bench.answers[request].logprobs
    assert len(told) == 6 and any(entry.top[0][0] != entry.token for entry in told)  # raw: before the grammar


def test_while_a_grammar_compiles_others_run_and_it_waits(bench, module):
    """The confined request starts nothing before its grammar is there; a later one is answered meanwhile."""
    confined = bench.submit([10, 11, 12], max_tokens=50, grammar=DIGITS)
    assert not bench.core.busy and bench.core.compiling
    other = bench.ask([20, 21, 22], max_tokens=4)
    assert other.tokens == plain_answer(module, [20, 21, 22], 4)
    assert bench.answers[confined].prefilled is None and bench.core.stats().waiting == 1
    bench.clock.tick(2.0)
    bench.executor.work()
    assert bench.core.busy
    compiled(bench, confined)
    assert bench.answers[confined].prefilled.queue_s == 2.0
    assert not bench.core.compiling


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        (BAD, "unclosed group"),
        ("start: thing", 'unknown name: "thing"'),
        (LLMatcher.grammar_from_json_schema('{"type": "nonsense"}'), "Invalid type: nonsense"),
        (LLMatcher.grammar_from_json_schema('{"$ref": "#/nope"}'), "Pointer '/nope' does not exist"),
    ],
)
def test_a_grammar_that_does_not_compile_is_refused_while_another_request_runs(bench, module, grammar, told):
    """The refusal names the field and gives llguidance's reason on one line; the running answer is whole."""
    running = bench.submit([20, 21, 22], max_tokens=6)
    bench.step()
    bad = bench.submit([10, 11, 12], grammar=grammar)
    compiled(bench)
    refused = bench.answers[bad].refused
    assert (refused.kind, refused.field) == ("RequestRefused", "response_format")
    assert told in refused.message and "\n" not in refused.message and len(refused.message) < 400
    assert bench.answers[running].tokens == plain_answer(module, [20, 21, 22], 6)
    assert bench.core.stats().blocks_held == 0


def test_a_client_that_leaves_while_its_grammar_compiles_is_forgotten(bench):
    """Aborted before, or in the middle of, compiling, a request is gone; its id may come again."""
    left = bench.submit([10, 11, 12], grammar=DIGITS)
    bench.abort(left)
    assert (bench.core.stats().waiting, bench.core.compiling, bench.core.busy) == (0, False, False)
    bench.executor.work()
    bench.run()
    late = bench.submit([10, 11, 12], grammar=DIGITS)
    bench.executor.work()
    bench.abort(late)
    bench.run()
    assert (bench.core.stats().requests_cancelled_total, bench.core.compiling) == (2, False)
    assert bench.answers[left].prefilled is None and bench.answers[late].prefilled is None


def test_waiting_too_long_for_a_grammar_is_told(open_bench):
    """Beyond the queue's time the request is told to come back, and its grammar is forgotten."""
    bench = open_bench(queue_timeout_s=5.0)
    waiting = bench.submit([10, 11, 12], grammar=DIGITS)
    bench.clock.tick(5.0)
    bench.step()
    assert bench.answers[waiting].refused.kind == "QueueTimeout"
    bench.executor.work()
    bench.run()
    assert not bench.core.compiling


def test_the_place_in_a_grammar_survives_preemption(open_bench):
    """In a pool that makes them give way, confined answers are what they are with room."""
    prompts = [[seed, *range(30, 30 + 3 * B - 1)] for seed in range(3)]
    grammar = LLMatcher.grammar_from_regex("([a-f]{3}-){4}[0-9]{3}")

    def answers(bench: Bench) -> list[str]:
        wish = Sampling(temperature=1.0, seed=3)
        return compiled(
            bench, *[bench.submit(prompt, max_tokens=30, sampling=wish, grammar=grammar) for prompt in prompts]
        )

    roomy, crowd = open_bench(), open_bench(blocks=12, max_num_seqs=3)
    expected = answers(roomy)
    assert all(re.fullmatch("([a-f]{3}-){4}[0-9]{3}", text) for text in expected)
    assert answers(crowd) == expected
    assert (roomy.core.stats().preemptions_total, crowd.core.stats().preemptions_total > 0) == (0, True)


def test_a_neighbours_grammar_changes_nobody(bench, module):
    """Beside a confined answer, a free one is what it is alone."""
    confined = bench.submit([10, 11, 12], max_tokens=20, grammar=DIGITS)
    bench.executor.work()
    free = bench.submit([20, 21, 22], max_tokens=8)
    bench.run()
    assert bench.answers[confined].finished.reason == "stop"
    assert bench.answers[free].tokens == plain_answer(module, [20, 21, 22], 8)


def test_a_grammar_that_grows_too_complex_ends_in_a_refusal_of_its_own(bench, module):
    """When following the grammar hits a limit, that request is told so and its neighbour goes on."""
    confined = bench.submit([10, 11, 12], max_tokens=20, grammar=DIGITS)
    bench.executor.work()
    other = bench.submit([20, 21, 22], max_tokens=8)
    bench.step()
    (sequence,) = [s for s in bench.core.scheduler._running if s.request.id == confined]
    sequence.matcher.advance(TOKENIZER.convert_tokens_to_ids("x"))  # puts the matcher out of its grammar
    bench.run()
    refused = bench.answers[confined].refused
    assert (refused.kind, refused.field) == ("RequestRefused", "response_format")
    assert bench.answers[other].tokens == plain_answer(module, [20, 21, 22], 8)


def test_a_grammar_is_compiled_once_and_never_shared(folder):
    """The second request finds it compiled, and moving one copy leaves the other where it was."""
    with ThreadPoolExecutor(1) as executor:
        compiler = Compiler(folder, vocab_size=VOCAB, eos_ids=(EOS,), executor=executor)
        for request in ("one", "two"):
            compiler.begin(request, DIGITS)
        wait(compiler._begun.values())
        (_, one), (_, two) = compiler.take()
    start = two.allowed()
    one.advance(TOKENIZER.convert_tokens_to_ids("7"))
    assert two.allowed() == start and one.failure == two.failure == ""
    assert compiler._compiled.cache_info().misses == 1
    assert (compiler.pending, compiler.ready) == (False, False)


def test_a_tokenizer_that_cannot_be_loaded_is_told_as_our_failure(tmp_path):
    """With no tokenizer in the folder the request ends with an engine error, and the thread goes on."""
    with ThreadPoolExecutor(1) as executor:
        compiler = Compiler(tmp_path, vocab_size=VOCAB, eos_ids=(EOS,), executor=executor)
        compiler.begin("one", DIGITS)
        wait(compiler._begun.values())
        ((_, outcome),) = compiler.take()
    assert type(outcome).__name__ == "EngineError" and "grammar" in str(outcome)


def test_a_warming_with_a_grammar_is_checked_and_answers_nothing(bench):
    """A pre-warm waits for its grammar as any request, so a bad one is refused there too."""
    good, bad = (bench.submit([10, 11, 12], max_tokens=0, grammar=grammar) for grammar in (DIGITS, BAD))
    assert compiled(bench, good) == [""]
    assert bench.answers[good].finished.generated == 0
    assert bench.answers[bad].refused.field == "response_format"


def test_reasons_are_put_on_one_line():
    """Carets and quoted source lines go, what is long is cut."""
    assert readable("at 1(8): bad\n    (a\n    ^\nerror: open\n   1 | start: /(a/\n") == "at 1(8): bad (a error: open"
    assert len(readable("word " * 200)) == 301


def test_an_engine_without_grammars_never_loads_llguidance():
    """The worker's modules leave llguidance unimported until a request brings a grammar."""
    script = "import sys, engine.worker; sys.exit(str('llguidance' in sys.modules))"
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "False"
