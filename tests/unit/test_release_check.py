"""``make release-check`` says what it skips: a torch with CUDA is no torch for a check."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CHECK = Path(__file__).parents[2] / "release" / "check.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_check", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_torch_with_cuda_is_named_with_the_way_round_it(check: ModuleType) -> None:
    brought = {"torch": "2.13.0", "nvidia-cublas": "13.1", "cuda-toolkit": "13.0", "sympy": "1.14"}
    assert check.unfit(brought, cuda=False) == (
        "torch 2.13.0 comes only with CUDA (2 packages); see --cuda"
    )
    assert check.unfit(brought, cuda=True) is None
    assert check.unfit({"torch": "2.13.0+cpu", "sympy": "1.14"}, cuda=False) is None


def test_an_interpreter_without_a_fitting_torch_is_skipped_with_the_reason(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def resolved(python: Path, requirement: str, place: Path) -> dict[str, str]:
        assert requirement.startswith("torch>=")
        if python.name == "none":
            raise LookupError("ERROR: No matching distribution found for torch")
        return {"torch": "2.13.0"} | ({"nvidia-nccl": "2"} if python.name == "heavy" else {})

    monkeypatch.setattr(check, "resolved", resolved)
    pythons = {"3.11": Path("light"), "3.12": Path("heavy"), "3.13": Path("none")}
    kept, skipped = check.fitting(pythons, tmp_path, cuda=False)
    assert kept == {"3.11": Path("light")}
    assert "CUDA (1 packages)" in skipped["3.12"]
    assert skipped["3.13"] == "ERROR: No matching distribution found for torch"
