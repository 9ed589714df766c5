"""Encoders and fusions: the networks of the parties and of the label holder.

`ENCODERS` and `FUSIONS` name every kind. A kind is a spec: make one, then `build` the network.

    encoder = MLPSpec(hidden=(64, 64), embedding=32).build((num_columns,))
    fusion = MLPFusionSpec().build({"bank": 32, "telco": 32}, num_outputs=2)
"""

from colonnade.models.categorical import CategoricalEmbedding, embedded_width, embedding_dim_for
from colonnade.models.custom import CustomSpec
from colonnade.models.fusion import (
    ConcatFusion,
    LinearFusionSpec,
    MeanFusion,
    MLPFusionSpec,
    NoFusion,
)
from colonnade.models.head import HeadSpec
from colonnade.models.images import CNNSpec, LeNetSpec
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
