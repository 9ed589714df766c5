"""Encoders and fusions: shapes, gradients, well-known sizes, order, and what they refuse."""

import dataclasses
import itertools
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from colonnade.core.errors import ConfigError, DataError, MissingBlock
from colonnade.models import (
    ENCODERS,
    FUSIONS,
    CategoricalEmbedding,
    CNNSpec,
    CustomSpec,
    EncoderSpec,
    FusionSpec,
    LeNetSpec,
    LinearFusionSpec,
    LinearSpec,
    LSTMSpec,
    MLPFusionSpec,
    MLPSpec,
    ResNet18Spec,
    ResNet50Spec,
    ResNet101Spec,
    embedded_width,
    embedding_dim_for,
    is_deterministic,
)
from messages import says

generated = settings(derandomize=True, deadline=None, max_examples=20)

NARROW = (4, 4, 8, 8)

# One small example of each kind but custom, with an input it takes.
EXAMPLES: dict[str, tuple[EncoderSpec, tuple[int, ...]]] = {
    "mlp": (MLPSpec(hidden=(16, 8), embedding=5), (7,)),
    "linear": (LinearSpec(embedding=5), (7,)),
    "cnn": (CNNSpec(channels=(4, 6), hidden=12, embedding=5), (1, 14, 7)),
    "lenet": (LeNetSpec(channels=(4, 6, 8), hidden=(12, 9), embedding=5), (3, 14, 7)),
    "resnet18": (ResNet18Spec(widths=NARROW, embedding=5), (3, 16, 16)),
    "resnet50": (ResNet50Spec(widths=NARROW, embedding=5), (1, 16, 16)),
    "resnet101": (ResNet101Spec(widths=NARROW, embedding=5), (1, 8, 8)),
    "lstm": (LSTMSpec(hidden=6, num_layers=2, bidirectional=True, embedding=5), (4, 3)),
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# The tables


def test_tables_name_every_kind() -> None:
    assert set(ENCODERS) == {*EXAMPLES, "custom"}
    assert set(FUSIONS) == {"mlp", "linear"}
    assert all(ENCODERS[kind].kind == kind for kind in ENCODERS)
    assert all(FUSIONS[kind].kind == kind for kind in FUSIONS)


@pytest.mark.parametrize("spec", [*ENCODERS.values(), *FUSIONS.values()])
def test_specs_are_frozen_and_keyword_only(spec: type[Any]) -> None:
    assert spec.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(spec))


# Encoders


@pytest.mark.parametrize("kind", EXAMPLES)
def test_encoder_shape_gradients_and_determinism(kind: str) -> None:
    spec, shape = EXAMPLES[kind]
    encoder = spec.build(shape)
    output = encoder(torch.randn(8, *shape))
    assert output.shape == (8, spec.embedding)
    assert output.dtype == torch.float32
    assert is_deterministic(encoder)
    (output * torch.randn_like(output)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", EXAMPLES)
def test_encoder_in_float64(kind: str) -> None:
    spec, shape = EXAMPLES[kind]
    output = spec.build(shape).double()(torch.randn(3, *shape, dtype=torch.float64))
    assert output.dtype == torch.float64
    assert output.shape == (3, spec.embedding)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_same_seed_same_weights(kind: str) -> None:
    spec, shape = EXAMPLES[kind]
    torch.manual_seed(3)
    first = spec.build(shape).state_dict()
    torch.manual_seed(3)
    second = spec.build(shape).state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


@generated
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    hidden=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    embedding=st.integers(1, 9),
    batch=st.integers(1, 4),
)
def test_mlp_and_linear_take_any_shape(
    shape: tuple[int, ...], hidden: tuple[int, ...], embedding: int, batch: int
) -> None:
    for spec in (MLPSpec(hidden=hidden, embedding=embedding), LinearSpec(embedding=embedding)):
        assert spec.build(shape)(torch.randn(batch, *shape)).shape == (batch, embedding)


@generated
@given(
    channels=st.sampled_from([1, 3]),
    height=st.integers(4, 32),
    width=st.integers(4, 32),
    embedding=st.integers(1, 9),
)
def test_cnn_and_lenet_take_any_image(
    channels: int, height: int, width: int, embedding: int
) -> None:
    shape = (channels, height, width)
    for spec in (
        CNNSpec(channels=(2, 3), hidden=5, embedding=embedding),
        LeNetSpec(channels=(2, 3, 4), hidden=(5, 6), embedding=embedding),
    ):
        assert spec.build(shape)(torch.randn(2, *shape)).shape == (2, embedding)


@pytest.mark.parametrize("shape", [(1, 28, 28), (1, 28, 14), (3, 14, 14), (1, 28, 7), (3, 7, 28)])
@pytest.mark.parametrize("spec", [CNNSpec(), LeNetSpec()])
def test_cnn_and_lenet_defaults_on_cut_images(spec: EncoderSpec, shape: tuple[int, ...]) -> None:
    assert spec.build(shape)(torch.randn(2, *shape)).shape == (2, 32)


def test_cnn_and_lenet_have_the_layers_of_the_paper() -> None:
    def layers(module: nn.Module) -> list[int]:
        kinds = (nn.Conv2d, nn.MaxPool2d, nn.Linear)
        return [sum(type(part) is kind for part in module.modules()) for kind in kinds]

    assert layers(CNNSpec().build((1, 28, 28))) == [2, 2, 2]
    assert layers(LeNetSpec().build((1, 28, 28))) == [3, 1, 3]


@generated
@given(
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 20),
    width=st.integers(1, 20),
    stem=st.sampled_from(["small", "imagenet"]),
)
def test_resnet_takes_any_image(channels: int, height: int, width: int, stem: Any) -> None:
    shape = (channels, height, width)
    encoder = ResNet18Spec(widths=(2, 3, 4, 5), stem=stem, embedding=6).build(shape)
    assert encoder(torch.randn(2, *shape)).shape == (2, 6)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ResNet18Spec(stem="imagenet", embedding=1000), 11_689_512),
        (ResNet50Spec(stem="imagenet", embedding=1000), 25_557_032),
        (ResNet101Spec(stem="imagenet", embedding=1000), 44_549_160),
    ],
)
def test_resnet_has_the_well_known_number_of_parameters(spec: EncoderSpec, expected: int) -> None:
    with torch.device("meta"):  # sizes without memory or initialisation
        encoder = spec.build((3, 224, 224))
        output = encoder(torch.empty(2, 3, 224, 224))
    assert count_parameters(encoder) == expected
    assert output.shape == (2, 1000)


@pytest.mark.parametrize(("stem", "expected"), [("small", (4, 4)), ("imagenet", (1, 1))])
def test_resnet_stem_sets_the_resolution(stem: Any, expected: tuple[int, int]) -> None:
    encoder: Any = ResNet18Spec(widths=NARROW, stem=stem).build((3, 32, 32))
    features = encoder.stages(encoder.stem(torch.randn(2, 3, 32, 32)))
    assert tuple(features.shape[2:]) == expected


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_with_group_norm_a_sample_stands_alone(norm: Any) -> None:
    encoder = ResNet18Spec(widths=(4, 16, 24, 32), norm=norm).build((1, 8, 8)).double()
    pictures = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    others = torch.cat([pictures[:1], torch.randn(3, 1, 8, 8, dtype=torch.float64)])
    is_alone = torch.allclose(encoder(pictures)[0], encoder(others)[0], rtol=1e-9)
    assert is_alone == (norm == "group")


def test_group_norm_has_groups_of_about_16_channels() -> None:
    encoder = ResNet18Spec(widths=(8, 24, 40, 512), norm="group").build((1, 8, 8))
    groups = {
        module.num_channels: module.num_groups
        for module in encoder.modules()
        if isinstance(module, nn.GroupNorm)
    }
    assert groups == {8: 1, 24: 1, 40: 2, 512: 32}


def test_residual_block_adds_its_input() -> None:
    encoder: Any = ResNet18Spec(widths=NARROW).build((3, 8, 8)).eval()
    block = encoder.stages.stage0[0]
    nn.init.zeros_(block.second.norm.weight)
    positive = torch.rand(2, 4, 8, 8)
    assert torch.equal(block(positive), positive)


@generated
@given(
    steps=st.integers(1, 6),
    features=st.integers(1, 5),
    num_layers=st.integers(1, 3),
    bidirectional=st.booleans(),
)
def test_lstm_shapes(steps: int, features: int, num_layers: int, bidirectional: bool) -> None:
    spec = LSTMSpec(hidden=4, num_layers=num_layers, bidirectional=bidirectional, embedding=3)
    assert spec.build((steps, features))(torch.randn(2, steps, features)).shape == (2, 3)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_reads_the_last_step(bidirectional: bool) -> None:
    encoder: Any = LSTMSpec(hidden=4, num_layers=2, bidirectional=bidirectional).build((5, 3))
    x = torch.randn(2, 5, 3)
    steps, _ = encoder.lstm(x)
    # The backward direction has seen everything at the first step, the forward one at the last.
    last = torch.cat((steps[:, -1, :4], steps[:, 0, 4:]), dim=1)
    torch.testing.assert_close(encoder(x), encoder.project(last))


def test_mlp_layers_by_hand() -> None:
    encoder: Any = MLPSpec(hidden=(4,), embedding=3, activation="tanh").build((2, 3))
    x = torch.randn(5, 2, 3)
    hidden = torch.tanh(x.reshape(5, 6) @ encoder.hidden0.weight.T + encoder.hidden0.bias)
    expected = torch.tanh(hidden @ encoder.output.weight.T + encoder.output.bias)
    torch.testing.assert_close(encoder(x), expected)


@pytest.mark.parametrize("spec", [MLPSpec(), CNNSpec(), LeNetSpec()])
def test_activate_output(spec: Any) -> None:
    x = torch.randn(64, 1, 8, 8)
    on = dataclasses.replace(spec, activate_output=True).build((1, 8, 8))
    off = dataclasses.replace(spec, activate_output=False).build((1, 8, 8))
    assert (on(x) >= 0).all()
    assert (off(x) < 0).any()


def test_dropout_leaves_weight_names_as_they_are() -> None:
    plain = MLPSpec(hidden=(4, 4)).build((3,))
    dropped = MLPSpec(hidden=(4, 4), dropout=0.5).build((3,))
    assert list(plain.state_dict()) == list(dropped.state_dict())
    x = torch.randn(50, 3)
    assert not torch.equal(dropped(x), dropped(x))


def wrong_type(spec: Any, field: str, value: object) -> object:
    """Make a spec with a value the type checker would not let through."""
    return spec(**{field: value})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MLPSpec(embedding=0), ["embedding = 0", "at least 1"]),
        (lambda: MLPSpec(embedding=True), ["embedding = True"]),
        (lambda: MLPSpec(hidden=(4, 0)), ["hidden = (4, 0)"]),
        (lambda: wrong_type(MLPSpec, "hidden", [4]), ["hidden = [4]", "tuple"]),
        (
            lambda: wrong_type(MLPSpec, "activation", "swish"),
            ["activation = 'swish'", "relu, tanh, gelu"],
        ),
        (lambda: MLPSpec(dropout=1.0), ["dropout = 1.0", "0.0 to switch it off"]),
        (lambda: MLPSpec(dropout=math.nan), ["dropout = nan"]),
        (
            lambda: wrong_type(MLPSpec, "activate_output", "no"),
            ["activate_output = 'no'", "true or false"],
        ),
        (lambda: LinearSpec(embedding=-1), ["embedding = -1"]),
        (lambda: CNNSpec(channels=(1, 2, 3)), ["channels = (1, 2, 3)", "exactly 2"]),
        (lambda: CNNSpec(hidden=0), ["hidden = 0"]),
        (lambda: LeNetSpec(channels=(1, 2)), ["channels = (1, 2)", "exactly 3"]),
        (lambda: LeNetSpec(hidden=(1,)), ["hidden = (1,)", "exactly 2"]),
        (lambda: wrong_type(ResNet18Spec, "stem", "big"), ["stem = 'big'", "small, imagenet"]),
        (lambda: wrong_type(ResNet18Spec, "norm", "layer"), ["norm = 'layer'", "batch, group"]),
        (lambda: ResNet50Spec(widths=(1, 2)), ["widths = (1, 2)", "exactly 4"]),
        (lambda: LSTMSpec(num_layers=0), ["num_layers = 0"]),
        (lambda: LSTMSpec(dropout=0.5), ["dropout = 0.5", "num_layers = 2"]),
        (lambda: wrong_type(MLPFusionSpec, "combine", "sum"), ["combine = 'sum'", "concat, mean"]),
        (lambda: MLPFusionSpec(hidden=(0,)), ["hidden = (0,)"]),
        (lambda: MLPSpec().build(()), ["'mlp'", "at least one axis", "()"]),
        (lambda: LinearSpec().build((0,)), ["'linear'", "(0,)"]),
        (lambda: CNNSpec().build((9,)), ["(channels, height, width)", "(9,)", "kind = 'mlp'"]),
        (lambda: CNNSpec().build((1, 28, 3)), ["at least 4 pixels", "28 x 3", "kind = 'mlp'"]),
        (lambda: LeNetSpec().build((1, 1, 9)), ["at least 2 pixels", "1 x 9"]),
        (lambda: ResNet50Spec().build((8, 8)), ["'resnet50'", "(8, 8)", "image block"]),
        (lambda: LSTMSpec().build((9,)), ["(time, features)", "(9,)", "kind = 'mlp'"]),
    ],
)
def test_bad_values_are_named(make: Callable[[], object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


# Fusions


@generated
@given(
    sizes=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), min_size=1),
    num_outputs=st.integers(1, 4),
)
def test_concat_fusion_shapes_and_order(sizes: dict[str, int], num_outputs: int) -> None:
    for spec in (MLPFusionSpec(), LinearFusionSpec()):
        fusion = spec.build(sizes, num_outputs)
        blocks = {party: torch.randn(3, size) for party, size in sizes.items()}
        backwards = dict(sorted(blocks.items(), reverse=True))
        assert fusion(blocks).shape == (3, num_outputs)
        assert torch.equal(fusion(blocks), fusion(backwards))


def test_concat_fusion_by_hand() -> None:
    fusion: Any = LinearFusionSpec().build({"b": 3, "a": 2}, 4)
    a, b = torch.randn(5, 2), torch.randn(5, 3)
    output = fusion.head.output
    expected = a @ output.weight[:, :2].T + b @ output.weight[:, 2:].T + output.bias
    torch.testing.assert_close(fusion({"b": b, "a": a}), expected)


@pytest.mark.parametrize("spec", [MLPFusionSpec(combine="mean"), LinearFusionSpec(combine="mean")])
def test_mean_fusion_takes_whoever_is_there_in_any_order(spec: FusionSpec) -> None:
    fusion: Any = spec.build({"c": 4, "a": 4, "b": 4, "d": 4}, 2)
    blocks = {party: torch.randn(6, 4) for party in "abcd"}
    for count in range(1, 5):
        for present in itertools.combinations("abcd", count):
            total = blocks[present[0]]
            for party in present[1:]:
                total = total + blocks[party]
            expected = fusion.head(total * (1.0 / count))
            for order in itertools.permutations(present):
                assert torch.equal(fusion({party: blocks[party] for party in order}), expected)


@pytest.mark.parametrize("combine", ["concat", "mean"])
@pytest.mark.parametrize("kind", FUSIONS)
def test_fusion_gradients_and_float64(kind: str, combine: Any) -> None:
    fusion = FUSIONS[kind](combine=combine).build({"a": 4, "b": 4}, 3).double()
    assert is_deterministic(fusion)
    blocks = {p: torch.randn(6, 4, dtype=torch.float64, requires_grad=True) for p in "ab"}
    output = fusion(blocks)
    assert output.dtype == torch.float64
    output.square().sum().backward()
    for tensor in [*fusion.parameters(), *blocks.values()]:
        assert tensor.grad is not None
        assert tensor.grad.abs().sum() > 0


def test_concat_fusion_names_the_missing_parties() -> None:
    fusion = MLPFusionSpec().build({"bank": 2, "shop": 2, "telco": 2}, 2)
    with pytest.raises(MissingBlock, match=says("'concat'", "shop, telco", "'mean'")):
        fusion({"bank": torch.zeros(1, 2)})


def test_mean_fusion_needs_one_party() -> None:
    fusion = MLPFusionSpec(combine="mean").build({"bank": 2, "shop": 2}, 2)
    with pytest.raises(MissingBlock, match=says("'mean'", "bank, shop")):
        fusion({})


@pytest.mark.parametrize("combine", ["concat", "mean"])
def test_fusion_refuses_a_stranger(combine: Any) -> None:
    fusion = LinearFusionSpec(combine=combine).build({"bank": 2}, 2)
    with pytest.raises(DataError, match=says("bank", "shop")):
        fusion({"bank": torch.zeros(1, 2), "shop": torch.zeros(1, 2)})


def test_fusion_build_errors() -> None:
    with pytest.raises(ConfigError, match=says("'mean'", "bank = 2", "shop = 3")):
        MLPFusionSpec(combine="mean").build({"shop": 3, "bank": 2}, 2)
    with pytest.raises(ConfigError, match=says("embedding_sizes", "empty")):
        MLPFusionSpec().build({}, 2)
    with pytest.raises(ConfigError, match=r"num_outputs = 0"):
        MLPFusionSpec().build({"bank": 2}, 0)
    with pytest.raises(ConfigError, match=r"'bank' = 0"):
        MLPFusionSpec().build({"bank": 0}, 2)


# Categorical columns


def test_embedding_dim_rule() -> None:
    assert [embedding_dim_for(n) for n in (1, 2, 3, 10, 99, 100, 5000)] == [1, 1, 2, 5, 50, 50, 50]


@pytest.mark.parametrize("dim", [None, 3])
@pytest.mark.parametrize("num_numeric", [0, 2])
def test_categorical_embedding_by_hand(dim: int | None, num_numeric: int) -> None:
    cardinalities = (4, 7)
    width = embedded_width(num_numeric, cardinalities, dim)
    assert width == num_numeric + (6 if dim else 2 + 4)
    encoder = MLPSpec(embedding=5).build((width,))
    model: Any = CategoricalEmbedding(encoder, num_numeric, cardinalities, dim)
    assert is_deterministic(model)
    numeric = torch.randn(9, num_numeric)
    codes = torch.stack((torch.arange(9) % 4, torch.arange(9) % 7), dim=1)
    output = model(torch.cat((numeric, codes.float()), dim=1))
    looked_up = [table.weight[codes[:, i]] for i, table in enumerate(model.tables)]
    torch.testing.assert_close(output, encoder(torch.cat((numeric, *looked_up), dim=1)))
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    doubled = model.double()(torch.cat((numeric, codes), dim=1).double())
    assert doubled.dtype == torch.float64


def test_categorical_embedding_errors() -> None:
    model = CategoricalEmbedding(nn.Identity(), 1, (4, 7))
    with pytest.raises(DataError, match=says("feature 1", "column 2", "0 to 6", "0 to 7")):
        model(torch.tensor([[0.5, 3.0, 0.0], [0.5, 3.0, 7.0]]))
    with pytest.raises(DataError, match=says("(batch, 3)", "1 numeric", "2 categorical", "(2, 4)")):
        model(torch.zeros(2, 4))
    with pytest.raises(ConfigError, match=r"cardinalities\[1\] = 0"):
        embedded_width(1, (4, 0))
    with pytest.raises(ConfigError, match=says("cardinalities[0] = 16777217", 16777216)):
        embedded_width(1, (2**24 + 1,))
    with pytest.raises(ConfigError, match=r"dim = 0"):
        CategoricalEmbedding(nn.Identity(), 1, (4,), 0)
    with pytest.raises(ConfigError, match=r"num_numeric = -1"):
        embedded_width(-1, (4,))


# An encoder of the user's own


class Restless(nn.Module):
    """Draws random numbers and changes its buffers in every forward, whatever the mode."""

    def __init__(self, *, input_shape: tuple[int, ...], embedding: int, scale: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(math.prod(input_shape))
        self.output = nn.Linear(math.prod(input_shape), embedding)
        self.scale = scale
        self.register_buffer("in_place", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.in_place: Tensor
        self.replaced: Tensor
        self.norm.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.in_place += 1
        self.replaced = self.replaced + 1
        out: Tensor = self.output(self.norm(x.flatten(1))) * self.scale + torch.rand(())
        return out


class Plain(nn.Module):
    def __init__(self, *, input_shape: tuple[int, ...], embedding: int) -> None:
        super().__init__()
        self.output = nn.Linear(input_shape[0], embedding)


class OneTooWide(Plain):
    def __init__(self, *, input_shape: tuple[int, ...], embedding: int) -> None:
        super().__init__(input_shape=input_shape, embedding=embedding + 1)

    def forward(self, x: Tensor) -> Any:
        return self.output(x)


class TwoOutputs(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.output(x), x


class Failing(Plain):
    def forward(self, x: Tensor) -> Any:
        raise RuntimeError("no such axis")


class Lazy(nn.LazyLinear):
    def __init__(self, *, input_shape: tuple[int, ...], embedding: int) -> None:
        super().__init__(embedding)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes the classes above importable the way a user's own module is."""
    module = types.ModuleType("their_models")
    for thing in (Restless, OneTooWide, TwoOutputs, Failing, Lazy, count_parameters):
        setattr(module, thing.__name__, thing)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_custom_encoder_is_built_and_left_undisturbed(theirs: str) -> None:
    torch.manual_seed(11)
    Restless(input_shape=(2, 3), embedding=4)
    expected_next = torch.rand(3)

    torch.manual_seed(11)
    spec = CustomSpec(module=f"{theirs}:Restless", embedding=4, options={"scale": 2.0})
    encoder: Any = spec.build((2, 3))
    assert torch.equal(torch.rand(3), expected_next)
    assert type(encoder) is Restless
    assert encoder.scale == 2.0
    assert encoder.training
    assert not encoder.norm.training
    assert encoder.in_place == 0
    assert encoder.replaced == 0
    assert encoder.norm.num_batches_tracked == 0
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert encoder(torch.randn(5, 2, 3)).shape == (5, 4)
    assert not is_deterministic(encoder)
    assert hash(spec) == hash(dataclasses.replace(spec))


@pytest.mark.parametrize(
    "path", ["", "their_models", "their_models.Restless", "a:b:c", ":X", "m:", "a b:X", "../m:X"]
)
def test_custom_path_of_bad_form(path: str) -> None:
    with pytest.raises(ConfigError, match=r"module = .*'package\.module:ClassName'"):
        CustomSpec(module=path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Absent", says("'their_models'", "'Absent'")),
        ("count_parameters", says("torch.nn.Module", "<function count_parameters")),
        ("OneTooWide", says("(2, 4)", "(2, 5)")),
        ("TwoOutputs", says("(2, 4)", "tuple")),
        ("Failing", says("(2, 3)", "RuntimeError: no such axis")),
        ("Lazy", says("lazy", "input_shape")),
    ],
)
def test_custom_class_that_does_not_fit(theirs: str, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CustomSpec(module=f"{theirs}:{name}", embedding=4).build((3,))


def test_custom_module_that_cannot_be_imported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_models.py").write_text("raise OSError('no disk')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=says("'broken_models'", "OSError: no disk")):
        CustomSpec(module="broken_models:X").build((3,))
    with pytest.raises(ConfigError, match=says("'no_such_package'", "PYTHONPATH")):
        CustomSpec(module="no_such_package:X").build((3,))


def test_custom_options(theirs: str) -> None:
    with pytest.raises(ConfigError, match=says("options={'scales': 1}", "TypeError")):
        CustomSpec(module=f"{theirs}:Restless", options={"scales": 1}).build((3,))
    with pytest.raises(ConfigError, match=says("options.embedding = 3")):
        CustomSpec(module=f"{theirs}:Restless", options={"embedding": 3})
    listed: Any = {"sizes": [1]}
    with pytest.raises(ConfigError, match=r"options\.sizes = \[1\]"):
        CustomSpec(module=f"{theirs}:Restless", options=listed)


# Which modules draw random numbers


class SubclassedLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(0.0)), True),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), False),
        (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)).eval(), False),
        (nn.LSTM(2, 2, num_layers=2), True),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.1), False),
        (nn.ModuleDict({"a": nn.ModuleList([nn.BatchNorm1d(2), nn.Embedding(2, 2)])}), True),
        (SubclassedLinear(2, 2), False),
        (nn.RReLU(), False),
        (MLPSpec(dropout=0.2).build((3,)), False),
        (LSTMSpec(num_layers=2, dropout=0.2).build((3, 2)), False),
        (MLPFusionSpec(dropout=0.2).build({"a": 2}, 2), False),
        (CategoricalEmbedding(nn.Dropout(0.2), 1, (3,)), False),
    ],
)
def test_is_deterministic(module: nn.Module, expected: bool) -> None:
    assert is_deterministic(module) is expected


def test_hooks_and_replaced_forwards_are_not_trusted() -> None:
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda module, args, output: output + torch.rand(()))
    assert not is_deterministic(nn.Sequential(hooked))
    replaced: Any = nn.Linear(2, 2)
    replaced.forward = torch.rand_like
    assert not is_deterministic(nn.Sequential(replaced))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_deterministic_encoders_leave_the_random_state(kind: str) -> None:
    spec, shape = EXAMPLES[kind]
    encoder = nn.Sequential(spec.build(shape), nn.Dropout(0.0))
    x = torch.randn(4, *shape)
    before = torch.get_rng_state()
    assert is_deterministic(encoder)
    encoder(x)
    assert torch.equal(torch.get_rng_state(), before)
