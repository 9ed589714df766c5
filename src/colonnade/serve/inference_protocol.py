"""The Open Inference Protocol's paths (v2): ids in as a tensor, answers out as tensors.

Tensors have no gaps, so a request with an id that can't be answered is refused as a whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from colonnade.core.errors import ConfigError
from colonnade.serve.admittance import Admittance, Caller
from colonnade.serve.asking import ask
from colonnade.serve.prediction_service import PredictionService, Row, absent_parties
from colonnade.serve.predictor import Outcome, ServedModel

__all__ = ["add_v2_routes", "answer_tensors", "model_metadata"]


class InferTensor(BaseModel):
    """The tensor ``ids``."""

    model_config = ConfigDict(extra="ignore")

    name: Literal["ids"]
    shape: Annotated[list[int], Field(min_length=1, max_length=2)]
    datatype: Literal["BYTES", "INT64"]
    data: Annotated[
        list[StrictInt | Annotated[StrictStr, Field(max_length=200)]], Field(min_length=1)
    ]


class InferParameters(BaseModel):
    """Parameters that we know."""

    model_config = ConfigDict(extra="ignore")

    deadline_ms: Annotated[int, Field(ge=1)] = 200


class InferRequest(BaseModel):
    """A request of the protocol with one input tensor."""

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str | None, Field(max_length=200)] = None
    inputs: Annotated[list[InferTensor], Field(min_length=1, max_length=1)]
    parameters: InferParameters = InferParameters()


def add_v2_routes(routes: FastAPI, service: PredictionService, admittance: Admittance) -> None:
    """Add the protocol's paths.

    Args:
        routes: Where to.
        service: Who answers.
        admittance: Who may ask.
    """
    predict = Depends(admittance.for_scope("predict"))
    tags: list[Any] = ["open inference protocol"]

    @routes.get("/v2/health/live", tags=tags)
    async def live() -> dict[str, bool]:
        return {"live": True}

    @routes.get("/v2/health/ready", tags=tags)
    async def ready() -> dict[str, bool]:
        if service.unready() is not None:
            raise HTTPException(503, "not ready")
        return {"ready": True}

    @routes.get("/v2", tags=tags)
    async def about() -> dict[str, Any]:
        return {"name": "colonnade", "version": "2", "extensions": []}

    @routes.get("/v2/models/{name}", tags=tags, dependencies=[predict])
    @routes.get("/v2/models/{name}/versions/{version}", tags=tags, dependencies=[predict])
    async def metadata(name: str, version: str | None = None) -> dict[str, Any]:
        return model_metadata(_named(service, name, version), sorted(service.versions.loaded))

    @routes.get("/v2/models/{name}/ready", tags=tags, dependencies=[predict])
    async def model_ready(name: str) -> dict[str, Any]:
        _named(service, name)
        if service.unready() is not None:
            raise HTTPException(503, "not ready")
        return {"name": name, "ready": True}

    @routes.post("/v2/models/{name}/infer", tags=tags)
    async def infer(
        name: str,
        request: Request,
        wanted: InferRequest,
        caller: Caller = predict,
    ) -> dict[str, Any]:
        _named(service, name)
        tensor = wanted.inputs[0]
        size = 1
        for length in tensor.shape:
            size *= length
        if size != len(tensor.data):
            raise HTTPException(400, f"ids: shape {tensor.shape} for {len(tensor.data)} elements")
        rows = await ask(
            service,
            admittance,
            caller,
            [str(item) for item in tensor.data],
            arrived=request.scope["state"]["arrived"],
            deadline_ms=wanted.parameters.deadline_ms,
        )
        return answer_tensors(rows, wanted.id)


def _named(service: PredictionService, name: str, version: str | None = None) -> ServedModel:
    try:
        return service.named(name, version)
    except ConfigError as error:
        raise HTTPException(404, str(error)) from error


def model_metadata(model: ServedModel, versions: list[str]) -> dict[str, Any]:
    """A model's inputs and outputs, as the protocol describes them."""
    outputs = [{"name": "value", "datatype": _datatype(model.classes), "shape": [-1]}]
    if model.classes:
        shape = [-1, len(model.classes)]
        outputs.append({"name": "probabilities", "datatype": "FP64", "shape": shape})
        outputs.append({"name": "confidence", "datatype": "FP64", "shape": [-1]})
    outputs.append({"name": "blocks", "datatype": "BYTES", "shape": [-1]})
    return {
        "name": model.name,
        "versions": versions,
        "platform": "colonnade",
        "inputs": [{"name": "ids", "datatype": "BYTES", "shape": [-1]}],
        "outputs": outputs,
    }


def _datatype(classes: tuple[Any, ...]) -> str:
    kinds = {type(item) for item in classes}
    if not classes or kinds == {float}:
        return "FP64"
    if kinds == {bool}:
        return "BOOL"
    return "INT64" if kinds == {int} else "BYTES"


def answer_tensors(rows: list[Row], request_id: str | None) -> dict[str, Any]:
    """Answers as tensors.

    Raises:
        HTTPException: An id has no answer.
    """
    found = [row.found for row in rows if isinstance(row.found, Outcome)]
    if len(found) < len(rows):
        absent = absent_parties(rows)
        if absent:
            raise HTTPException(503, f"no answer without {', '.join(absent)}")
        raise HTTPException(404, f"{len(rows) - len(found)} of {len(rows)} ids can't be answered")
    model = rows[0].model
    num = len(found)
    versions = sorted({row.model.version for row in rows})
    outputs = [_tensor("value", _datatype(model.classes), [num], [item.value for item in found])]
    if model.classes:
        scores = [score for item in found for score in item.probabilities or ()]
        shape = [num, len(model.classes)]
        outputs.append(_tensor("probabilities", "FP64", shape, scores))
        confidences = [item.confidence for item in found]
        outputs.append(_tensor("confidence", "FP64", [num], confidences))
    blocks = [";".join(item.parties) for item in found]
    outputs.append(_tensor("blocks", "BYTES", [num], blocks))
    content: dict[str, Any] = {
        "model_name": model.name,
        "model_version": ",".join(versions),
        "outputs": outputs,
    }
    return content if request_id is None else {**content, "id": request_id}


def _tensor(name: str, datatype: str, shape: list[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}
