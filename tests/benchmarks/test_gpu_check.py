"""The check of a GPU: what it says where there is none, and that what it would run there runs."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_check
from engine.attention.tables import plan
from engine.attention.varlen import Varlen
from engine.config import EngineConfig
from engine.worker import build_core
from tests.engine import paged_kernel
from tests.tiny_model import save_tiny_model

CPU = torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One line on standard error, nothing on standard output, exit status 2."""
    assert gpu_check.main([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"gpu_check: torch {torch.__version__} finds no GPU here. Nothing was checked.\n"


def test_a_device_that_is_no_gpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The option says what it takes."""
    with pytest.raises(SystemExit):
        gpu_check.main(["--device", "cpu"])
    assert "expected a GPU such as cuda or cuda:1, not 'cpu'" in capsys.readouterr().err


def test_its_batch_shares_and_scatters() -> None:
    """Three blocks are shared by four sequences and two more by two of them, and no table is in order."""
    tables = plan(gpu_check.mixed_batch(256, CPU), 256)
    assert tables.shared is not None
    assert tables.shared.pages.tolist() == [[7, 3, 12], [20, 5, 0]]
    assert tables.own.used.tolist() == [1, 384, 128, 257, 384]
    assert (tables.longest, tables.own.most_q) == (6 * 256 + 1, 384)


def test_its_comparison_agrees_with_the_plain_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wanted case is compared, and each is right; a kernel that is wrong is not."""
    monkeypatch.setattr(gpu_check, "HEAD_DIM", 8)
    attend = Varlen(4, kernel=paged_kernel.varlen_attn)
    found = gpu_check.agreements(attend, CPU, 4)
    assert [(one.dtype, one.window, one.sinks) for one in found] == [
        (dtype, window, sinks)
        for dtype in ("float16", "bfloat16")
        for window in (None, 100, 11)
        for sinks in (False, True)
    ]
    assert all(one.right for one in found)
    wrong = gpu_check.agreements(lambda *given: attend(*given) * 1.1, CPU, 4)
    assert not any(one.right for one in wrong)


def test_what_it_measures_can_be_measured(tmp_path) -> None:
    """On a tiny model cold prompts reuse nothing, warm ones all but the suffix, and each step answers everyone."""
    config = EngineConfig(model="tiny", model_path=str(save_tiny_model(tmp_path)), kv_bytes=1 << 20, threads=1)
    core = build_core(config)
    assert sorted(gpu_check.first_tokens(core, 160, 1)) == ["cold", "warm"]
    decoding = gpu_check.decode(core, 3, 40, 6, 1000, 1e9)
    assert decoding.requests == 3
    assert decoding.bytes_per_step == 1000 + 3 * 43 * core.card.kv_bytes_per_token
    assert decoding.bandwidth_share == pytest.approx(decoding.bytes_per_step * decoding.tokens_per_s / 3 / 1e9)
