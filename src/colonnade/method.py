"""For people who write methods: everything that a method's file needs, in one import.

It only re-exports. Inside: what a method is made of, what its verbs declare, the parts that
methods share, and the errors that a method raises. Not inside: how a run is built, stored or sent.
Nothing in Colonnade imports from here.
"""

from __future__ import annotations

from colonnade.core.errors import (
    ColonnadeError,
    ConfigError,
    DataError,
    MissingBlock,
    ProtocolError,
)
from colonnade.core.label_holder import LabelHolder
from colonnade.core.memory import Memory
from colonnade.core.messages import Batch
from colonnade.core.method import Answer, Method, MethodInfo, Needs
from colonnade.core.parties import Arrival, Each, Parties, each
from colonnade.core.party import Party
from colonnade.core.presence import Observed
from colonnade.core.releases import (
    Average,
    Bytes,
    Columns,
    Count,
    Derivative,
    Embedding,
    Loss,
    Output,
    OwnOutput,
    RollOfSamples,
    Weights,
)
from colonnade.core.seeds import derive_seed
from colonnade.core.sums import Total
from colonnade.core.verbs import verb
from colonnade.methods import register
from colonnade.parts.embedding_table import EmbeddingTable
from colonnade.parts.headed_party import HeadedParty
from colonnade.parts.local_steps import LocalStepsParty
from colonnade.parts.own_models import OwnModelParty, OwnModels
from colonnade.parts.split_step import (
    SplitParty,
    ask_or_average,
    fused_gradients,
    predict_by_fusion,
    split_step,
)

__all__ = [
    "Answer",
    "Arrival",
    "Average",
    "Batch",
    "Bytes",
    "ColonnadeError",
    "Columns",
    "ConfigError",
    "Count",
    "DataError",
    "Derivative",
    "Each",
    "Embedding",
    "EmbeddingTable",
    "HeadedParty",
    "LabelHolder",
    "LocalStepsParty",
    "Loss",
    "Memory",
    "Method",
    "MethodInfo",
    "MissingBlock",
    "Needs",
    "Observed",
    "Output",
    "OwnModelParty",
    "OwnModels",
    "OwnOutput",
    "Parties",
    "Party",
    "ProtocolError",
    "RollOfSamples",
    "SplitParty",
    "Total",
    "Weights",
    "ask_or_average",
    "derive_seed",
    "each",
    "fused_gradients",
    "predict_by_fusion",
    "register",
    "split_step",
    "verb",
]
