"""The Open Inference Protocol's messages for gRPC, by their published fields and numbers.

The messages are described in a table and made by protobuf's own factory: nothing is generated, and
protobuf does all reading and writing of bytes.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["METHODS", "SERVICE", "message"]

_PACKAGE = "inference"
SERVICE = f"{_PACKAGE}.GRPCInferenceService"
# Of every call: what comes, what goes.
METHODS = {
    name: (f"{name}Request", f"{name}Response")
    for name in (
        *("ServerLive", "ServerReady", "ModelReady"),
        *("ServerMetadata", "ModelMetadata", "ModelInfer"),
    )
}

_PARAMETERS = "map InferParameter"
# A field: its number and type. "*" repeats; "map X" is a map from text to X.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "InferParameter": {
        "bool_param": (1, "bool"),
        "int64_param": (2, "int64"),
        "string_param": (3, "string"),
        "double_param": (4, "double"),
        "uint64_param": (5, "uint64"),
    },
    "InferTensorContents": {
        "bool_contents": (1, "*bool"),
        "int_contents": (2, "*int32"),
        "int64_contents": (3, "*int64"),
        "uint_contents": (4, "*uint32"),
        "uint64_contents": (5, "*uint64"),
        "fp32_contents": (6, "*float"),
        "fp64_contents": (7, "*double"),
        "bytes_contents": (8, "*bytes"),
    },
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": {"name": (1, "string"), "version": (2, "string")},
    "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {
        "name": (1, "string"),
        "version": (2, "string"),
        "extensions": (3, "*string"),
    },
    "ModelMetadataRequest": {"name": (1, "string"), "version": (2, "string")},
    "ModelMetadataResponse.TensorMetadata": {
        "name": (1, "string"),
        "datatype": (2, "string"),
        "shape": (3, "*int64"),
    },
    "ModelMetadataResponse": {
        "name": (1, "string"),
        "versions": (2, "*string"),
        "platform": (3, "string"),
        "inputs": (4, "*ModelMetadataResponse.TensorMetadata"),
        "outputs": (5, "*ModelMetadataResponse.TensorMetadata"),
    },
    "ModelInferRequest.InferInputTensor": {
        "name": (1, "string"),
        "datatype": (2, "string"),
        "shape": (3, "*int64"),
        "parameters": (4, _PARAMETERS),
        "contents": (5, "InferTensorContents"),
    },
    "ModelInferRequest.InferRequestedOutputTensor": {
        "name": (1, "string"),
        "parameters": (2, _PARAMETERS),
    },
    "ModelInferRequest": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, _PARAMETERS),
        "inputs": (5, "*ModelInferRequest.InferInputTensor"),
        "outputs": (6, "*ModelInferRequest.InferRequestedOutputTensor"),
        "raw_input_contents": (7, "*bytes"),
    },
    "ModelInferResponse.InferOutputTensor": {
        "name": (1, "string"),
        "datatype": (2, "string"),
        "shape": (3, "*int64"),
        "parameters": (4, _PARAMETERS),
        "contents": (5, "InferTensorContents"),
    },
    "ModelInferResponse": {
        "model_name": (1, "string"),
        "model_version": (2, "string"),
        "id": (3, "string"),
        "parameters": (4, _PARAMETERS),
        "outputs": (5, "*ModelInferResponse.InferOutputTensor"),
        "raw_output_contents": (6, "*bytes"),
    },
}
# Fields of which one at a time is set.
_CHOICES = {"InferParameter": "parameter_choice"}

_Field = descriptor_pb2.FieldDescriptorProto


def message(name: str) -> Any:
    """A message's class.

    Args:
        name: Its name in the protocol, such as ``ModelInferRequest``.
    """
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _described() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="colonnade/open_inference.proto", package=_PACKAGE, syntax="proto3"
    )
    made: dict[str, Any] = {}
    # Inner messages stand before the outer ones in the table, and within them in the file.
    for name in sorted(_MESSAGES, key=lambda item: item.count(".")):
        outer, _, inner = name.rpartition(".")
        place = made[outer].nested_type.add() if outer else file.message_type.add()
        place.name = inner
        made[name] = place
    for name, fields in _MESSAGES.items():
        if name in _CHOICES:
            made[name].oneof_decl.add().name = _CHOICES[name]
        for field, (number, kind) in fields.items():
            _add_field(made[name], name, field, number, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(place: Any, owner: str, name: str, number: int, kind: str) -> None:
    field = place.field.add()
    field.name, field.number = name, number
    field.label = _Field.LABEL_OPTIONAL
    if owner in _CHOICES:
        field.oneof_index = 0
    if kind.startswith("map "):
        entry = place.nested_type.add()
        entry.name = f"{name.title()}Entry"
        entry.options.map_entry = True
        _add_field(entry, "", "key", 1, "string")
        _add_field(entry, "", "value", 2, kind.removeprefix("map "))
        kind = f"*{owner}.{entry.name}"
    if kind.startswith("*"):
        field.label = _Field.LABEL_REPEATED
        kind = kind.removeprefix("*")
    plain = getattr(_Field, f"TYPE_{kind.upper()}", None)
    if plain is None:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = plain


_POOL = _described()
