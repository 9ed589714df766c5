"""Networks compute on their device, and nothing else does: held on a second device of our own."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import colonnade
from colonnade.core import devices
from colonnade.core.errors import ConfigError
from colonnade.core.party import Party
from colonnade.estimator import VerticalClassifier
from colonnade.fabrics.in_process import isolated_call
from colonnade.federate.own_settings import OwnSettings, effective_settings
from colonnade.federate.remote_run import settings_for
from colonnade.methods import METHODS
from colonnade.run.engine import train
from colonnade.run.spec import parse_spec
from colonnade.run.storage import read_state
from golden_runs import FILE, cases, outcome
from second_device import DEVICE, SecondDevice

EXPECTED = json.loads(FILE.read_text(encoding="utf-8"))
ON_DEVICE = [f"{name}, binary" for name in METHODS] + [
    "laser, missing",
    "laser, labels shared",
    "flex, labels shared",
    "splitnn, top_k",
]
# Torch warns of its own meta device, which holds no numbers; this one does.
pytestmark = pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")


@pytest.fixture
def second_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which 'cuda' is the second device."""
    found = devices.find_device

    def find(name: str, dtype: str = "float32") -> torch.device | None:
        return DEVICE if name == "cuda" else found(name, dtype)

    monkeypatch.setattr(devices, "find_device", find)
    with SecondDevice():
        yield


def _tables() -> tuple[dict[str, pd.DataFrame], pd.Series[Any]]:
    draw = np.random.default_rng(5)
    ids = [f"s{number:03d}" for number in range(160)]
    blocks = {
        name: pd.DataFrame(draw.normal(size=(160, 3)), index=ids, columns=list("xyz"))
        for name in ("bank", "shop")
    }
    total = sum(block["x"] for block in blocks.values())
    return blocks, (total > 0).astype(int).rename("label")


def _fit(**more: Any) -> colonnade.Result:
    blocks, labels = _tables()
    return colonnade.fit(blocks, labels, label_holder="bank", **{"epochs": 2, "seed": 3, **more})


@pytest.mark.parametrize("name", ON_DEVICE)
def test_every_method_computes_on_the_device_and_ends_as_on_the_cpu(
    name: str, second_device: None
) -> None:
    """A tensor left behind fails the operation that meets it, as it would on CUDA."""
    before = SecondDevice.num_operations
    assert outcome(**dict(cases())[name], device="cuda") == pytest.approx(
        EXPECTED[name], rel=1e-8, abs=1e-12
    )
    assert SecondDevice.num_operations > before + 500


def test_the_second_device_catches_a_tensor_that_is_left_behind() -> None:
    """The check itself can fail: inputs, targets, weights and numpy each on the wrong side."""
    with SecondDevice():
        network = nn.Linear(2, 1).to(DEVICE)
        rows = torch.ones(4, 2)
        with pytest.raises(RuntimeError, match="same device"):
            network(rows)
        outputs = network(rows.to(DEVICE))
        with pytest.raises(RuntimeError, match="same device"):
            nn.functional.mse_loss(outputs, torch.zeros(4, 1))
        with pytest.raises(RuntimeError, match="same device"):
            outputs += torch.zeros(4, 1)
        with pytest.raises(RuntimeError, match="numpy"):
            outputs.detach().numpy()
        assert outputs.cpu().device.type == "cpu"


def test_weights_stay_on_the_device_and_whatever_leaves_is_on_the_cpu(
    second_device: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    crossed: list[Tensor] = []

    def watched(call: Any) -> Any:
        crossed.extend(item for item in call.arguments if isinstance(item, Tensor))
        return isolated_call(call)

    monkeypatch.setattr("colonnade.fabrics.in_process.isolated_call", watched)
    result = _fit(device="cuda", out=tmp_path / "run", settings={"dtype": "float64"})
    assert crossed
    assert all(item.device.type == "cpu" for item in crossed)
    every = [weight for network in result.modules.values() for weight in network.parameters()]
    assert every
    assert all(weight.device == DEVICE for weight in every)
    files = list((tmp_path / "run").rglob("*.safetensors"))
    assert len(files) >= 3
    again = pickle.loads(pickle.dumps(result))  # noqa: S301
    for state in (result.modules["shop"].state_dict(), read_state(files[0]), again.__getstate__()):
        assert all(item.device.type == "cpu" for item in _tensors(state))
    blocks, _ = _tables()
    assert (again.outputs(blocks) == result.outputs(blocks)).all(axis=None)


def test_a_copy_of_a_network_on_a_device_is_a_network_of_its_own(second_device: None) -> None:
    where = devices.Placement(device=DEVICE, is_mixed=False)
    network = devices.place(nn.Linear(2, 1), where)
    own = copy.deepcopy(network)
    with torch.no_grad():
        network.weight.zero_()
        network.bias.zero_()
    assert network(torch.ones(1, 2)).item() == 0.0
    assert own(torch.ones(1, 2)).item() != 0.0


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "local_momentum"])
def test_a_run_goes_on_where_there_is_another_device(
    optimizer: str, second_device: None, tmp_path: Path
) -> None:
    """There, back and on: the same weights as without a device at all."""
    spec = parse_spec(
        {
            "data": {"dataset": "breast_cancer", "batch_size": 128},
            "dtype": "float64",
            "stop": {"epochs": 3},
            "defaults": {
                "encoder": {"kind": "mlp", "hidden": [4], "embedding": 2},
                "optimizer": {"name": optimizer},
            },
        }
    )
    whole = train(spec, directory=tmp_path / "whole")
    for epochs, device in ((1, "cuda"), (2, "cpu"), (3, "cuda")):
        some = replace(spec, device=device, stop=replace(spec.stop, epochs=epochs))
        found = train(some, directory=tmp_path / "parts", resume=epochs > 1)
    expected, state = (item.modules["clinic"].state_dict() for item in (whole, found))
    for name, weight in expected.items():
        assert torch.allclose(state[name], weight, rtol=1e-10, atol=0)


def test_private_steps_work_on_a_device(second_device: None) -> None:
    """Noise is secret and another each time; that every weight moved on its device is not."""
    protect = {"kind": "private_steps", "noise": 1.0}
    result = _fit(device="cuda", epochs=1, settings={"defaults": {"protect": [protect]}})
    assert all(weight.device == DEVICE for weight in result.modules["shop"].parameters())


def test_a_device_that_is_not_here_is_told_before_training(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ConfigError, match=r"device: this machine has no 'cuda' .* \"auto\" or"):
        _fit(device="cuda", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert devices.find_device("auto") is not None


def test_a_model_of_a_device_predicts_where_there_is_none(
    second_device: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocks, _ = _tables()
    there = _fit(device="cuda", out=tmp_path / "run", settings={"dtype": "float64"})
    monkeypatch.setattr(devices, "find_device", lambda name, dtype="float32": None)
    here = colonnade.Result.load(tmp_path / "run")
    assert all(weight.device.type == "cpu" for weight in here.modules["shop"].parameters())
    assert np.allclose(here.outputs(blocks), there.outputs(blocks), rtol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "gpu"}, "device: 'cpu', 'cuda', 'cuda:1', 'mps' or 'auto', got 'gpu'"),
        ({"device": "meta"}, "device: 'cpu'"),
        ({"device": "mps", "dtype": "float64"}, "no float64"),
        ({"precision": "mixed", "dtype": "float64"}, 'precision: .* dtype = "float32"'),
        ({"precision": "half"}, "precision"),
    ],
)
def test_what_no_device_can_do_is_refused_on_any_machine(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_spec(settings)


def test_the_estimators_take_a_device(second_device: None) -> None:
    blocks, labels = _tables()
    table = pd.concat(blocks.values(), axis=1, keys=blocks)
    table.columns = [f"{name}_{column}" for name, column in table.columns]
    model = VerticalClassifier(epochs=1, device="cuda", random_state=0).fit(table, labels)
    assert all(weight.device == DEVICE for weight in model.result_.modules["fusion"].parameters())
    plain = VerticalClassifier(epochs=1, random_state=0).fit(table, labels)
    assert np.allclose(model.predict_proba(table), plain.predict_proba(table), rtol=1e-10)
    with pytest.raises(ConfigError, match=r"settings\.device: pass it as the parameter device"):
        VerticalClassifier(settings={"device": "cuda"}).fit(table, labels)


def test_a_party_elsewhere_computes_where_it_says_itself() -> None:
    """Its machine is its own affair: it is neither told the label holder's device, nor obeys it."""
    proposed = parse_spec({"party": {"shop": {}}, "device": "cuda", "precision": "mixed"})
    told = json.loads(settings_for(proposed, "shop", ("bank", "shop")))
    assert not {"device", "precision"} & told.keys()
    own = effective_settings(proposed, "shop", OwnSettings())
    assert (own.device, own.precision) == ("cpu", "full")
    own = effective_settings(proposed, "shop", OwnSettings(device="mps", precision="mixed"))
    assert (own.device, own.precision) == ("mps", "mixed")
    with pytest.raises(ConfigError, match="device: 'cpu'"):
        OwnSettings(device="gpu")


def test_mixed_precision_computes_in_bfloat16_and_releases_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Close to full precision, and not the same: on the CPU, which has bfloat16 too."""
    inside: set[torch.dtype] = set()
    released: set[torch.dtype] = set()
    infer = Party.encode

    def encode(self: Party, batch: Any) -> Tensor:
        found = infer(self, batch)
        released.add(found.dtype)
        return found

    def factory(width: int, embedding: int) -> nn.Module:
        network = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, embedding))
        network[0].register_forward_hook(lambda _, __, outputs: inside.add(outputs.dtype))
        return network

    monkeypatch.setattr(Party, "encode", encode)
    blocks, _ = _tables()
    mixed = _fit(precision="mixed", epochs=4, encoder=factory)
    assert torch.bfloat16 in inside
    assert released == {torch.float32}
    assert all(item.dtype == torch.float32 for item in mixed.modules["shop"].parameters())
    inside.clear()
    full = _fit(epochs=4, encoder=factory)
    assert inside == {torch.float32}
    ours, theirs = (item.outputs(blocks).to_numpy() for item in (mixed, full))
    assert 0 < np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max() + 0.05


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device and its torch")
def test_on_cuda_a_run_ends_as_on_the_cpu() -> None:
    for name in ON_DEVICE:
        assert outcome(**dict(cases())[name], device="cuda") == pytest.approx(
            EXPECTED[name], rel=1e-6, abs=1e-9
        )


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if type(value) is list else ()
    return [tensor for item in items for tensor in _tensors(item)]
