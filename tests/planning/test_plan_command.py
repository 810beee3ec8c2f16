"""`keepwarm plan` as a person and as a program meet it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command
from typer.testing import CliRunner

from engine.defaults import filled
from engine.weights import WHEELS
from gateway.cli import app
from gateway.planning.errors import Unplannable
from gateway.planning.finding import KNOWN, find
from gateway.planning.kv import BYTES
from gateway.planning.machines import MACHINES
from gateway.planning.parameters import FAMILIES
from gateway.planning.plan import DEFAULT_KV_BYTES, planned
from gateway.planning.shape import Found
from gateway.planning.wanted import DTYPES, KV_DTYPES, Wanted
from prefix_store.classes import BUILT_IN
from prefix_store.policy import Policy
from tests.planning.configs import GEMMA3_1B, GPT_OSS_20B, LLAMA_70B, PUBLISHED, saved

DOCUMENT = Path(__file__).parents[2] / "docs/planning.md"
SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments):
    """Run the command: its exit code, what it printed, what it said went wrong."""
    done = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


def told(*arguments):
    """What it prints for programs."""
    code, out, err = run(*arguments, "--json")
    assert (code, err) == (0, "")
    return msgspec.json.decode(out)


def test_the_default_model_by_its_name():
    """`smollm2-135m` takes 45 KiB a token in float32, and 4 GiB hold 22 sequences of 4,096 tokens."""
    plan = told("smollm2-135m")
    assert (plan["parameters"], plan["weight_bytes"]) == (134_515_008, 538_060_032)
    assert (plan["dtype"], plan["kv"]["bytes_per_token"]) == ("float32", 45 << 10)
    capacity = plan["capacity"]
    assert (capacity["kv_bytes"], capacity["blocks"]) == (4 << 30, (4 << 30) // (45 << 14))
    assert (capacity["sequences"], capacity["sequences_sharing_prefix"]) == (5825 // 256, (5825 - 64) // 192)
    assert plan["machine"] is None


def test_every_shipped_name_is_known():
    """What `serve` finds in wheels is planned by that name: of Gemma 3 270M, 15 layers of 18 slide over 512 tokens."""
    assert set(KNOWN) == set(WHEELS)
    plan = told("gemma3-270m")
    assert (plan["family"], plan["parameters"]) == ("gemma3_text", 268_098_176)
    assert (plan["sliding_layers"], plan["window"], plan["kv"]["bytes_per_token"]) == (15, 512, 18 * 2 * 256 * 4)


def test_memory_less_weights_is_what_is_left(tmp_path):
    """Two H200 hold Llama 70B in fp16, and 0.92 of them less its weights makes 88 sequences of 4,096 tokens."""
    plan = told(saved(tmp_path, LLAMA_70B), "--device", "h200", "--tensor-parallel", "2")
    weights = 2 * 70_553_706_496
    left = int(2 * 141e9 * 0.92) - weights
    assert (plan["weight_bytes"], plan["capacity"]["kv_bytes"]) == (weights, left)
    assert plan["capacity"]["sequences"] == left // (320 << 14) // 256 == 88
    decode = {row["batch"]: row for row in plan["machine"]["decode"]}
    assert [batch for batch, row in decode.items() if row["fits"]] == [1, 2, 4, 8, 16, 32, 64]
    read = weights - 2 * 128256 * 8192 + 4096 * 327_680
    assert decode[1]["seconds"] == pytest.approx(read / 9.6e12)
    cold, warm = plan["machine"]["prefill"]
    assert (cold["computed"], warm["read"], warm["computed"]) == (4096, 1024, 3072)
    assert warm["seconds"] < cold["seconds"]


def test_each_class_says_what_is_resident_and_what_there_is_room_for(tmp_path):
    """Every class has rate times life resident, within a budget of half the pool for what is promised."""
    plan = told("smollm2-135m", "--rate", "2", "--new-share", "0.05", "--used-for", "10m", "--prefix-tokens", "2000")
    retention = plan["retention"]
    assert (retention["kept_tokens"], retention["promise_budget"]) == (2000, Policy(name="default").promise_budget)
    assert [row["class"] for row in retention["classes"]] == list(BUILT_IN)
    first = retention["classes"][0]
    assert (first["life_s"], first["resident"]) == (900.0, pytest.approx(90.0))
    assert (first["promised"]["room"], first["held"]["room"]) == (5825 // 2 // 125, 5825 // 125)
    assert first["promised"]["verdict"] == first["held"]["verdict"] == "too many"
    assert first["promised"]["kept_share"] == pytest.approx(23 / 90)
    assert first["held"]["lives_s"] == pytest.approx(460.0)


def test_both_accountings_of_windows_are_told(tmp_path):
    """A table says what Keepwarm keeps of Gemma 3 and names what an engine that frees windows would."""
    file = saved(tmp_path, GEMMA3_1B)
    plan = told(file, "--length", "32768")
    assert (plan["sliding_layers"], plan["window"]) == (22, 512)
    assert plan["kv"]["sequence_bytes"] == 26 * 32768 * 1024
    assert plan["kv"]["sequence_bytes_windowed"] == (4 * 32768 + 22 * 33 * 16) * 1024
    assert plan["capacity"]["sequences_windowed"] == (4 << 30) // plan["kv"]["sequence_bytes_windowed"]
    _, out, _ = run(file, "--length", "32768")
    assert "Keepwarm keeps whole prefixes, in sliding layers too" in out
    assert "22 of them sliding over 512 tokens" in out


def test_a_folder_without_weights_is_enough(tmp_path):
    """A folder with a config.json is planned under its own name."""
    saved(tmp_path, GPT_OSS_20B)
    plan = told(tmp_path)
    assert (plan["model"], plan["family"], plan["active_parameters"] < plan["parameters"]) == (
        tmp_path.name,
        "gpt_oss",
        True,
    )


def test_what_a_configuration_leaves_to_its_class_is_asked_of_transformers(tmp_path):
    """Gemma 3's published configuration, nested and nearly empty, is planned as its class fills it."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    config = {
        "model_type": "gemma3",
        "text_config": text | {"sliding_window": 1024},
        "vision_config": {"model_type": "siglip_vision_model"},
        "torch_dtype": "bfloat16",
    }
    plan = told(saved(tmp_path, config))
    assert (plan["heads"], plan["kv_heads"], plan["head_dim"]) == (8, [4], [256])
    assert (plan["layers"], plan["sliding_layers"], plan["window"], plan["dtype"]) == (34, 29, 1024, "bfloat16")


def test_other_layers_have_other_heads():
    """Gemma 4's global layers have heads of 512, and Gemma 3n's last layers keep nothing of their own."""
    four = planned(Found(name="four", config=filled({"model_type": "gemma4_text", "dtype": "bfloat16"})), Wanted())
    assert (four["head_dim"], four["parameters"]) == ([256, 512], None)
    assert four["kv"]["bytes_per_token"] == 2 * 4 * 2 * (25 * 256 + 5 * 512)
    three = planned(Found(name="three", config=filled({"model_type": "gemma3n_text", "dtype": "bfloat16"})), Wanted())
    assert (three["layers"], three["layers_without_own_kv"]) == (35, 15)
    assert three["kv"]["bytes_per_token"] == 20 * 2 * 2 * 256 * 2


def test_the_picture_has_a_page_for_each_part(tmp_path):
    """Variants and classes are drawn as bars, and where a machine is given its roofs as lines."""
    file, svg = saved(tmp_path, LLAMA_70B), tmp_path / "plan.svg"
    for options, pages in (((), 2), (("--device", "h200", "--tensor-parallel", "2"), 3)):
        assert run(file, "--picture", svg, *options)[0] == 0
        drawn = ET.parse(svg).getroot()
        assert len(drawn.findall(f"{SVG}svg")) == pages
        assert len(drawn.findall(f".//{SVG}rect")) == pages + 9 + len(BUILT_IN)


def test_a_table_names_everything(tmp_path):
    """The page has the model, each variant, each class, each batch and both roofs."""
    file = saved(tmp_path, LLAMA_70B)
    code, out, _ = run(file, "--device", "h200", "--tensor-parallel", "2")
    assert code == 0
    for words in ("320 KiB a token", "2.5 MiB", "GQA (own)", "MQA", "int8", *BUILT_IN, "256", "NVIDIA H200 datasheet"):
        assert words in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["no-such"], "There is no model 'no-such'"),
        (["weights.gguf"], "weights.gguf: a plan is made of a config.json"),
        (["smollm2-135m", "--length", "1"], "--length: expected a whole number from 2 to 16,777,216, not 1"),
        (["smollm2-135m", "--length", "8193"], "--length: expected a whole number from 2 to 8,192, the model's window"),
        (["smollm2-135m", "--prefix-tokens", "15"], "--prefix-tokens: expected a whole number from 16 (one block) to"),
        (["smollm2-135m", "--kv-cache-dtype", "int4"], "--kv-cache-dtype: expected one of auto, float32"),
        (["smollm2-135m", "--dtype", "int8"], "--dtype: expected one of auto, float32, bfloat16, float16, not 'int8'"),
        (["smollm2-135m", "--new-share", "nan"], "--new-share: expected a number from 1e-09 to 1, not nan"),
        (["smollm2-135m", "--rate", "0"], "--rate: expected a number from 1e-09 to 1e+09, not 0"),
        (["smollm2-135m", "--promise-budget", "1.5"], "--promise-budget: expected a number from 0 to 1, not 1.5"),
        (["smollm2-135m", "--kv-bytes", "lots"], "--kv-bytes: expected a size such as 4GiB"),
        (["smollm2-135m", "--kv-bytes", "9" * 400], "--kv-bytes: expected a smaller size"),
        (["smollm2-135m", "--used-for", "soon"], "--used-for: expected a duration above zero"),
        (["smollm2-135m", "--flops", "1T"], "--bandwidth: a machine is both --flops and --bandwidth, or a --device"),
        (
            ["smollm2-135m", "--flops", "inf", "--bandwidth", "1G"],
            "--flops: expected a number from 1 to 1e+24, not inf",
        ),
        (["smollm2-135m", "--device", "abacus"], "--device: expected one of a10, "),
        (["smollm2-135m", "--device", "b200"], "--device b200: no datasheet number for float32; give --flops"),
        (["smollm2-135m", "--gpu-memory", "100MB"], "--gpu-memory: 100,000,000 bytes at 0.92 are 92,000,000, and the"),
        (["smollm2-135m", "--tensor-parallel", "4"], "--tensor-parallel: expected 1 to 3, the KV heads"),
        (["smollm2-135m", "--gpu-memory", "8GB", "--kv-bytes", "1GB"], "--kv-bytes: give it or --gpu-memory, not both"),
        (["smollm2-135m", "--picture", "/nowhere/x.svg"], "--picture /nowhere/x.svg: No such file or directory"),
    ],
)
def test_mistakes_are_one_line_and_code_2(options, said):
    """What a person can put right is said in one line that names the option and its range."""
    code, out, err = run(*options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"keepwarm: {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "no JSON: Input data was truncated"),
        (b"[1]", "expected a JSON object, as transformers writes configurations"),
        (b"[" * 100_000, "no JSON: "),
        (b"\xff", "no JSON: "),
        (b"{}", "model_type: missing; a transformers configuration names its family there"),
        (b'{"model_type": "no_such_family"}', "transformers cannot read it: "),
        (b'{"model_type": "llama", "num_hidden_layers": "x"}', "transformers cannot read it: "),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, said):
    """The file, and what is wrong with it, stand in one line."""
    file = tmp_path / "config.json"
    file.write_bytes(content)
    code, out, err = run(file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"keepwarm: {file}: {said}")


def test_a_hub_that_is_not_reached_is_said(tmp_path):
    """A hub id that is not in the hub's cache, without the hub, says what to do instead."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "plan", "nobody/no-such-model"],
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "keepwarm: nobody/no-such-model is not on this machine and the hub cannot be reached. Go online once, or give "
        "its config.json as a file.\n"
    )


def test_a_hub_id_in_the_hubs_cache_needs_no_network(tmp_path, monkeypatch):
    """What the hub's cache has is planned from there."""
    from huggingface_hub import constants

    commit = "0" * 40
    folder = tmp_path / "models--acme--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    saved(folder / "snapshots" / commit, LLAMA_70B)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert told("acme/tiny")["kv"]["bytes_per_token"] == 320 << 10


def test_a_family_that_is_not_counted_takes_its_weights_from_the_folder(tmp_path):
    """Without a count, what lies in the folder or --weight-bytes is taken, and without either a memory is refused."""
    saved(tmp_path, LLAMA_70B)
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert find(str(tmp_path)).bytes_on_disk == 1000
    novel, memory = LLAMA_70B | {"model_type": "novel"}, 24 * 10**9
    lying = planned(Found(name="x", config=novel, bytes_on_disk=1000), Wanted(memory=memory))
    assert (lying["weight_bytes"], lying["parameters"]) == (1000, None)
    given = Wanted(memory=memory, weight_bytes=4 * 10**9)
    assert planned(Found(name="x", config=novel), given)["weight_bytes"] == 4 * 10**9
    with pytest.raises(Unplannable, match=r"^--weight-bytes: not known for this model"):
        planned(Found(name="x", config=novel), Wanted(memory=memory))


def test_a_memory_that_holds_no_sequence_says_what_it_would_take(tmp_path):
    """No sequence fits in 10 MB, and the note has the bytes and the length that would."""
    plan = told("smollm2-135m", "--kv-bytes", "10MB")
    assert plan["capacity"]["sequences"] == 0
    assert plan["notes"][-1] == (
        "This memory holds no sequence of 4,096 tokens: it would take 188,743,680 bytes, or a --length of 208 at most."
    )


def test_the_default_is_the_engines_own():
    """Without a number there is as much as the engine takes at most on a CPU."""
    from engine.memory import DEFAULT_CEILING

    assert DEFAULT_KV_BYTES == DEFAULT_CEILING


def test_the_engine_lays_out_what_is_planned():
    """A token takes in the engine's pool what the plan says."""
    import torch
    from transformers import LlamaConfig

    from engine.pageable import layout_of

    config = {key: value for key, value in LLAMA_70B.items() if key not in {"model_type", "dtype"}}
    layout = layout_of(LlamaConfig(**config), torch.float16)
    assert planned(Found(name="x", config=LLAMA_70B), Wanted())["kv"]["bytes_per_token"] == layout.bytes_per_token


def test_no_plan_brings_torch_in(tmp_path):
    """Planning in the gateway's process leaves torch and transformers unloaded, where transformers is asked too."""
    file = saved(tmp_path, {"model_type": "gemma3_text", "dtype": "bfloat16"})
    script = (
        "import sys\nfrom gateway.planning import finding, plan, wanted\n"
        f"plan.planned(finding.find({str(file)!r}), wanted.Wanted())\n"
        "sys.exit(str(sorted({'torch', 'transformers'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "[]"


def test_every_option_is_in_the_document():
    """docs/planning.md lists each option with its default and its help, word for word and in order."""
    (command,) = (one for one in get_command(app).commands.values() if one.name == "plan")
    options = [one for one in command.params if one.opts[0].startswith("--")]
    told = re.findall(r"^\| `(--[\w-]+)` \| (?:`(\S+)`|-) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert told == [
        (one.opts[0], "" if one.default in {None, False} else str(one.default), one.help) for one in options
    ]


def test_every_machine_and_family_is_in_the_document():
    """docs/planning.md lists each machine with its numbers and source, and each family that is counted."""
    text = DOCUMENT.read_text()
    for name, machine in MACHINES.items():
        speeds = [
            f"{machine.flops / 1e12:g}",
            "-" if machine.flops_float32 is None else f"{machine.flops_float32 / 1e12:g}",
        ]
        sizes = [f"{machine.bandwidth / 1e9:g}", "-" if machine.memory is None else f"{machine.memory / 1e9:g}"]
        assert " | ".join([f"| `{name}`", *speeds, *sizes, f"{machine.source} |"]) in text
    assert f"counted by family: {', '.join(FAMILIES)}." in text


wanted = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(DTYPES),
        "kv_cache_dtype": st.sampled_from(KV_DTYPES),
        "length": st.none() | st.integers(2, 40_000),
        "prefix_tokens": st.none() | st.integers(1, 40_000),
        "block_tokens": st.sampled_from([1, 2, 16, 256]),
        "kv_bytes": st.none() | st.integers(1, 1 << 60),
        "rate": st.floats(1e-9, 1e9),
        "new_share": st.floats(1e-9, 1.0),
        "used_for_s": st.floats(0.0, 1e6),
        "promise_budget": st.floats(0.0, 1.0),
        "device": st.none() | st.sampled_from(sorted(MACHINES)),
    }
)


@given(st.sampled_from(sorted(PUBLISHED)), wanted)
def test_every_plan_is_json_of_numbers_or_a_refusal(name, options):
    """Whatever is asked, the plan is made or refused by name, and nothing in it is endless or undefined."""
    refused, plan = "", None
    try:
        plan = planned(Found(name=name, config=PUBLISHED[name][0]), Wanted(**options))
    except Unplannable as error:
        refused = str(error)
    assert (plan is None) is refused.startswith("--")
    assert msgspec.json.decode(msgspec.json.encode(plan)) == plan
    if plan is None:
        return
    assert plan["capacity"]["blocks"] * plan["kv"]["bytes_per_block"] <= plan["capacity"]["kv_bytes"]
    assert plan["kv_cache_dtype"] in BYTES
