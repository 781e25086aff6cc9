"""The report of programs on a GPU: on the stand-in with interpreted kernels. Kernels are described, not timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tapejit as tj
from support import fake_gpu
from tapejit.tracer.tools.report.data import gather
from tapejit.tracer.tools.report.page import page

pytest.importorskip("triton", reason="Triton has no wheel for this platform", exc_type=ImportError)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TAPEJIT_BACKEND", "auto")
    monkeypatch.setenv("TAPEJIT_TUNE", "0")
    with fake_gpu.gpu(True) as xp:
        yield xp


def test_kernels_for_gpus_are_told_and_shown() -> None:
    weight = tj.randn(16, 16).to("cuda").requires_grad_()
    function = tj.compile(lambda x: ((x @ weight).softmax(1) * 2).sum(), name="function")
    for _ in range(4):
        function(tj.randn(8, 16).to("cuda")).backward()
    facts = gather([function], "gpu")
    programs = [p for path in facts["functions"][0]["paths"] for p in path["programs"]]
    assert len(programs) == 2  # forwards and backwards
    forward = programs[0]["native"]
    assert forward["kernels"][0]["kind"] == "matmul" and facts["machine"]["target"].startswith("sm_")
    assert sum(k["flops"] for k in forward["kernels"] if k["kind"] == "matmul") == 2 * 8 * 16 * 16
    for program in programs:
        for k in program["native"]["kernels"]:
            assert k["seconds"] is None and k["lines"] and ("triton" in k or k["same_code_as"] is not None)
            assert k["bytes"] == sum(k["read"].values()) + sum(k["written"].values()) > 0
    assert {(e["from"], e["to"]) for e in programs[0]["edges"]} >= {(0, 1)}
    text = page(facts)
    assert text.count("@triton.jit") >= 3 and "not measured" in text and "Times are not taken" in text
    explained = str(function.explain(llvm=True))
    assert "kernels are not timed on a GPU" in explained and "@triton.jit" in explained
