"""A run's settings: every section is read, every mistake is named by its path, nothing is lost."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.core.errors import ConfigError
from colonnade.fabrics import FABRICS, InProcessSpec, SimulatedSpec
from colonnade.fabrics.durations import Constant, Exponential, Trace, Uniform
from colonnade.methods import METHODS
from colonnade.methods.alone import Alone
from colonnade.models import ENCODERS, FUSIONS, LinearFusionSpec, LSTMSpec, MLPSpec
from colonnade.run.defaults import OPTIMIZER, STOP
from colonnade.run.spec import RunSpec, parse_spec, plain_spec, read_spec
from messages import says

RICH = """
seed = 7
dtype = "float64"

[method]
name = "alone"
who = "bank"

[data]
batch_size = 32

[data.split]
validation = 0.2
test = 0

[label_holder]
name = "bank"
file = "data/labels.csv"
id = "customer"
label = "defaulted"
task = "regression"
loss = "huber"
fusion = { kind = "linear", combine = "mean" }
optimizer = { name = "sgd", lr = 1, options = { momentum = 0.9, nesterov = true } }

[party.bank]
file = "data/bank.parquet"
id = "customer"
columns = ["age", "income"]
prepare = { missing = "mean", constant = "drop" }
encoder = { kind = "mlp", hidden = [8, 4], activation = "tanh", dropout = 0.5 }
optimizer = { name = "adamw", lr = 0.01 }

[party.telco]
file = "/srv/telco.csv"
id = "number"
encoder = "lstm"

[party.telco.prepare]
scale = false
categorical = "embedding"
categorical_columns = ["plan"]
shape = [4, 3]

[defaults]
encoder = "linear"
prepare = { constant = "keep" }
optimizer = { name = "rmsprop" }

[fabric]
name = "simulated"
fuse = { kind = "trace", values = [1, 2, 3] }

[fabric.default]
encode = { kind = "uniform", low = 1, high = 4 }
latency = 5
bandwidth = 1000

[fabric.party.telco]
step = { kind = "exponential", mean = 3, least = 1 }

[stop]
exchanges = 100
epochs = 3
target = 0.9
patience = 4
evaluate_every = 10

[patience]
timeout = 500
then = "continue"

[record]
log_every = 3
checkpoint_every = 20
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "run.toml"
    path.write_text(text)
    return path


def test_every_section_is_read(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, RICH))
    assert (spec.seed, spec.dtype) == (7, "float64")
    assert spec.method == Alone(who="bank")
    assert spec.data.batch_size == 32
    assert (spec.data.split.validation, spec.data.split.test) == (0.2, 0.0)
    holder = spec.label_holder
    assert (holder.name, holder.id, holder.label) == ("bank", "customer", "defaulted")
    assert (holder.task, holder.loss) == ("regression", "huber")
    assert holder.fusion == LinearFusionSpec(combine="mean")
    assert (holder.optimizer.name, holder.optimizer.lr) == ("sgd", 1.0)
    assert holder.optimizer.options == {"momentum": 0.9, "nesterov": True}
    bank, telco = spec.party["bank"], spec.party["telco"]
    assert bank.columns == ("age", "income")
    assert spec.encoder_of("bank") == MLPSpec(hidden=(8, 4), activation="tanh", dropout=0.5)
    assert spec.encoder_of("telco") == LSTMSpec()
    assert spec.optimizer_of("bank").name == "adamw"
    assert spec.optimizer_of("telco").name == spec.optimizer_of("shop").name == "rmsprop"
    assert (spec.prepare_of("bank").missing, spec.prepare_of("bank").constant) == ("mean", "drop")
    assert spec.prepare_of("telco").shape == (4, 3)
    assert spec.prepare_of("telco").categorical_columns == ("plan",)
    assert spec.prepare_of("shop").constant == "keep"
    assert telco.columns is None
    assert isinstance(spec.fabric, SimulatedSpec)
    assert spec.fabric.default.encode == Uniform(low=1, high=4)
    assert spec.fabric.default.latency == Constant(value=5)
    assert spec.fabric.default.bandwidth == 1000
    assert spec.fabric.party["telco"].step == Exponential(mean=3.0, least=1)
    assert spec.fabric.fuse == Trace(values=(1, 2, 3))
    stop = spec.stop
    assert (stop.exchanges, stop.epochs, stop.target) == (100, 3, 0.9)
    assert (stop.patience, stop.evaluate_every) == (4, 10)
    assert (spec.patience.timeout, spec.patience.then) == (500, "continue")
    assert (spec.record.log_every, spec.record.checkpoint_every) == (3, 20)


def test_nothing_at_all_is_the_default_run() -> None:
    spec = parse_spec({})
    assert spec == RunSpec()
    assert spec.method.info.name == "splitnn"
    assert spec.fabric == InProcessSpec()
    assert spec.stop == STOP
    assert spec.optimizer_of("bank") == spec.label_holder.optimizer == OPTIMIZER


def test_a_named_data_set() -> None:
    spec = parse_spec({"data": {"dataset": "breast_cancer", "num_parties": 3}})
    assert (spec.data.dataset, spec.data.num_parties) == ("breast_cancer", 3)


def test_files_are_relative_to_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    spec = read_spec(written(tmp_path, RICH))
    assert spec.label_holder.file == tmp_path.resolve() / "data" / "labels.csv"
    assert spec.party["bank"].file == tmp_path.resolve() / "data" / "bank.parquet"
    assert spec.party["telco"].file == Path("/srv/telco.csv")
    monkeypatch.chdir(tmp_path)
    assert read_spec(Path("run.toml")) == spec


def test_a_run_s_own_config_json_reads_as_the_same_settings(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, RICH))
    path = tmp_path / "run" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(plain_spec(spec)))
    assert read_spec(path) == spec


def refusal_of(toml: str) -> str:
    """What is said about a line of TOML, as ``path.of.key: what``."""
    with pytest.raises(ConfigError) as caught:
        parse_spec(tomllib.loads(toml))
    return str(caught.value)


@pytest.mark.parametrize(
    ("toml", "path", "hint"),
    [
        ("sede = 1", "sede", "seed"),
        ("metod = 'splitnn'", "metod", "method"),
        ("method.nme = 'splitnn'", "method.name", "splitnn"),
        ("method = {name = 'splitnn', piplined = true}", "method.piplined", "pipelined"),
        ("method = {name = 'local', steps = 2}", "method.steps", "no keys"),
        ("method = {name = 'alone', whom = 'bank'}", "method.whom", "who"),
        ("data.batchsize = 2", "data.batchsize", "batch_size"),
        ("data.split.tests = 0.2", "data.split.tests", "test"),
        ("label_holder.labl = 'y'", "label_holder.labl", "label"),
        ("label_holder.fusion = {kind = 'mlp', hiden = []}", "label_holder.fusion.hiden", "hidden"),
        ("party.bank.encodr = 'mlp'", "party.bank.encodr", "encoder"),
        ("party.b.encoder = {kind = 'mlp', hiddn = [3]}", "party.b.encoder.hiddn", "hidden"),
        ("party.bank.prepare.scal = true", "party.bank.prepare.scal", "scale"),
        ("party.bank.optimizer.rl = 1.0", "party.bank.optimizer.rl", "lr"),
        ("party.b.optimizer.options.beta = 1", "party.b.optimizer.options.beta", "betas"),
        ("defaults.encodr = 'mlp'", "defaults.encodr", "encoder"),
        ("fabric = {name = 'simulated', default.latncy = 5}", "fabric.default.latncy", "latency"),
        ("fabric = {name = 'simulated', party.b.steps = 5}", "fabric.party.b.steps", "step"),
        ("fabric = {name = 'in_process', latency = 5}", "fabric.latency", "step"),
        ("stop.epoch = 3", "stop.epoch", "epochs"),
        ("patience.timout = 3", "patience.timout", "timeout"),
        ("record.logevery = 3", "record.logevery", "log_every"),
    ],
)
def test_unknown_keys(toml: str, path: str, hint: str) -> None:
    message = refusal_of(toml).replace(": options", ".options")
    assert message.startswith(path + ":")
    assert hint in message.removeprefix(path)


@pytest.mark.parametrize(
    ("toml", "path", "nearest"),
    [
        ("method = 'splitn'", "method.name", "splitnn"),
        ("fabric = 'simulatd'", "fabric.name", "simulated"),
        ("defaults.encoder = 'mpl'", "defaults.encoder.kind", "mlp"),
        ("label_holder.fusion = 'linera'", "label_holder.fusion.kind", "linear"),
        ("label_holder.task = 'binry'", "label_holder.task", "binary"),
        ("defaults.optimizer.name = 'adm'", "defaults.optimizer.name", "adam"),
        ("defaults.prepare.missing = 'men'", "defaults.prepare.missing", "mean"),
        ("patience.then = 'stp'", "patience.then", "stop"),
        ("dtype = 'float23'", "dtype", "float32"),
        ("fabric = {name = 'simulated', fuse.kind = 'unifrm'}", "fabric.fuse.kind", "uniform"),
    ],
)
def test_unknown_names(toml: str, path: str, nearest: str) -> None:
    message = refusal_of(toml).replace(": name", ".name")
    assert message.startswith(path + ":")
    assert f"did you mean '{nearest}'?" in message


@pytest.mark.parametrize(
    ("toml", "path", "wanted"),
    [
        ("seed = '7'", "seed", "a whole number"),
        ("seed = 7.5", "seed", "a whole number"),
        ("seed = true", "seed", "a whole number"),
        ("method = 3", "method", "a name or a table with 'name'"),
        ("data = 'iris'", "data", "a table"),
        ("data.batch_size = 2.5", "data.batch_size", "a whole number"),
        ("data.split.test = '20%'", "data.split.test", "a number"),
        ("party = ['bank']", "party", "a table"),
        ("party.bank.columns = 'age'", "party.bank.columns", "a list"),
        ("party.bank.columns = ['age', 3]", "party.bank.columns[1]", "a text"),
        ("party.bank.file = 3", "party.bank.file", "Path"),
        ("defaults.prepare.scale = 1", "defaults.prepare.scale", "true or false"),
        ("defaults.optimizer.lr = 'fast'", "defaults.optimizer.lr", "a number"),
        ("defaults.encoder = {kind = 'mlp', hidden = ['8']}", "defaults.encoder.hidden[0]", "a wh"),
        ("stop.epochs = 1.5", "stop.epochs", "a whole number"),
        ("fabric = {name = 'simulated', default.step = 1.5}", "fabric.default.step", "kind"),
        ("record = 5", "record", "a table"),
    ],
)
def test_wrong_types(toml: str, path: str, wanted: str) -> None:
    message = refusal_of(toml)
    assert message.startswith(f"{path}: expected")
    assert wanted in message
    assert "got" in message


@pytest.mark.parametrize(
    ("toml", "path", "telling"),
    [
        ("stop.epochs = 0", "stop.epochs", "at least 1"),
        ("stop = {epochs = 1, patience = 0}", "stop.patience", "at least 1"),
        ("stop.exchanges = -3", "stop.exchanges", "-3"),
        ("record.log_every = 0", "record.log_every", "at least 1"),
        ("record.checkpoint_every = 0", "record.checkpoint_every", "at least 1"),
        ("data.batch_size = 0", "data.batch_size", "at least 1"),
        ("data.num_parties = 2", "data.num_parties", "set dataset too"),
        ("data.split.test = 1.0", "data.split.test", "below 1"),
        ("data.split.test = -0.1", "data.split.test", "-0.1"),
        ("data.split = {test = 0.5, validation = 0.5}", "data.split", "nothing is left"),
        ("defaults.optimizer.lr = 0", "defaults.optimizer.lr", "above 0"),
        ("defaults.optimizer.lr = nan", "defaults.optimizer.lr", "above 0"),
        ("defaults.optimizer.lr = inf", "defaults.optimizer.lr", "inf"),
        ("defaults.prepare.shape = [3, 0]", "defaults.prepare.shape", "positive"),
        ("party.b.encoder = {kind = 'mlp', dropout = 1.0}", "party.b.encoder.dropout", "1.0"),
        ("fabric = {name = 'simulated', default.latency = -5}", "fabric.default.latency", "-5"),
        ("fabric = {name = 'simulated', fuse.kind = 'uniform'}", "fabric.fuse.low", "missing"),
        ("patience.timeout = -1", "patience.timeout", "-1"),
    ],
)
def test_impossible_values(toml: str, path: str, telling: str) -> None:
    message = refusal_of(toml)
    assert message.replace(": ", ".").startswith(path)
    assert telling in message


def test_bad_toml_names_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path, "seed = 1\nmethod = = 3\n")
    with pytest.raises(ConfigError, match="line 2") as caught:
        read_spec(path)
    assert str(path) in str(caught.value)


def test_a_mistake_in_a_file_names_file_and_key(tmp_path: Path) -> None:
    path = written(tmp_path, "[stop]\nepoch = 3\n")
    with pytest.raises(ConfigError, match=says("run.toml", "stop.epoch", "'epochs'")):
        read_spec(path)


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_no_such_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=says(str(tmp_path / name), "no such file")):
        read_spec(tmp_path / name)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"seed = 1 # \xff\xfe")
    with pytest.raises(ConfigError, match=says("run.toml", "utf-8")):
        read_spec(path)


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
counts = st.integers(1, 1000)
durations = st.one_of(
    counts,
    st.builds(
        lambda low, more: {"kind": "uniform", "low": low, "high": low + more}, counts, counts
    ),
    st.fixed_dictionaries({"kind": st.just("trace"), "values": st.lists(counts, min_size=1)}),
    st.fixed_dictionaries({"kind": st.just("exponential"), "mean": st.floats(0.1, 1e6)}),
)
optimizers = st.fixed_dictionaries(
    {"name": st.sampled_from(["sgd", "adam", "adamw"]), "lr": st.floats(1e-9, 10.0)},
    optional={"options": st.fixed_dictionaries({"weight_decay": st.floats(0, 1)})},
)
encoders = st.one_of(
    st.sampled_from(sorted(set(ENCODERS) - {"custom"})),
    st.fixed_dictionaries(
        {"kind": st.just("mlp"), "hidden": st.lists(counts, max_size=3), "embedding": counts}
    ),
)
prepares = st.fixed_dictionaries(
    {"constant": st.sampled_from(["refuse", "drop", "keep"]), "scale": st.booleans()},
    optional={"categorical_columns": st.lists(names), "shape": st.lists(counts, min_size=1)},
)
parties = st.fixed_dictionaries(
    {},
    optional={
        "file": names,
        "id": names,
        "columns": st.lists(names),
        "encoder": encoders,
        "optimizer": optimizers,
        "prepare": prepares,
    },
)
profiles = st.fixed_dictionaries(
    {}, optional={"encode": durations, "step": durations, "latency": durations, "bandwidth": counts}
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**63),
        "method": st.sampled_from(sorted(METHODS)),
        "dtype": st.sampled_from(["float32", "float64"]),
        "party": st.dictionaries(names, parties, max_size=3),
        "defaults": st.fixed_dictionaries({"encoder": encoders, "optimizer": optimizers}),
        "label_holder": st.fixed_dictionaries(
            {"fusion": st.sampled_from(sorted(FUSIONS)), "label": names}
        ),
        "fabric": st.one_of(
            st.sampled_from(sorted(FABRICS)),
            st.fixed_dictionaries(
                {"name": st.just("simulated"), "party": st.dictionaries(names, profiles)}
            ),
        ),
        "stop": st.fixed_dictionaries({"epochs": counts}, optional={"target": st.floats(0, 1)}),
    },
)


@given(values=specs)
def test_settings_survive_being_written_down(values: dict[str, Any]) -> None:
    spec = parse_spec(values)
    plain = json.loads(json.dumps(plain_spec(spec)))
    assert parse_spec(plain) == spec
    assert plain_spec(parse_spec(plain)) == plain
