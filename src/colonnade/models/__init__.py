"""Networks: encoders of the parties, fusions of the label holder, heads over one embedding.

`ENCODERS` and `FUSIONS` list every kind by its name in a configuration. A kind is a spec: a frozen
record of settings whose `build` makes the network. How networks are trained is not decided here.

    encoder = MLPSpec(hidden=(64, 64), embedding=32).build((num_columns,))
    fusion = MLPFusionSpec().build({"bank": 32, "telco": 32}, num_outputs=2)
"""

from colonnade.models.categorical import CategoricalEmbedding, embedded_width, embedding_dim_for
from colonnade.models.custom import CustomSpec
from colonnade.models.factories import Factory, FactoryFusionSpec, FactoryHeadSpec, FactorySpec
from colonnade.models.fusion import (
    ConcatFusion,
    LinearFusionSpec,
    MeanFusion,
    MLPFusionSpec,
    NoFusion,
)
from colonnade.models.head import HeadSpec
from colonnade.models.image_encoders import CNNSpec, LeNetSpec
from colonnade.models.mlp import Activation, LinearSpec, MLPSpec
from colonnade.models.registry import (
    ENCODERS,
    FUSIONS,
    Combine,
    EncoderSpec,
    FusionSpec,
    deterministic,
    is_deterministic,
)
from colonnade.models.resnet import ResNet18Spec, ResNet50Spec, ResNet101Spec, Stem
from colonnade.models.sequence import LSTMSpec
from colonnade.models.sets import SetEncoders, SetFusions

__all__ = [
    "ENCODERS",
    "FUSIONS",
    "Activation",
    "CNNSpec",
    "CategoricalEmbedding",
    "Combine",
    "ConcatFusion",
    "CustomSpec",
    "EncoderSpec",
    "Factory",
    "FactoryFusionSpec",
    "FactoryHeadSpec",
    "FactorySpec",
    "FusionSpec",
    "HeadSpec",
    "LSTMSpec",
    "LeNetSpec",
    "LinearFusionSpec",
    "LinearSpec",
    "MLPFusionSpec",
    "MLPSpec",
    "MeanFusion",
    "NoFusion",
    "ResNet18Spec",
    "ResNet50Spec",
    "ResNet101Spec",
    "SetEncoders",
    "SetFusions",
    "Stem",
    "deterministic",
    "embedded_width",
    "embedding_dim_for",
    "is_deterministic",
]
