"""The HTTP face: ``/v1``, the Open Inference Protocol's ``/v2``, health, metrics and the page."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field

from colonnade.core.errors import ColonnadeError
from colonnade.serve.admittance import Admittance, Caller
from colonnade.serve.guard import Application, Guard
from colonnade.serve.inference_protocol import add_v2_routes
from colonnade.serve.predict_route import (
    PREDICT,
    PredictRequest,
    QuickPredictions,
    error_answer,
    predicted,
)
from colonnade.serve.prediction_service import PredictionService
from colonnade.serve.serving_page import operations_page, serving_page

__all__ = ["make_application"]

_LONGEST_KEY = 200


class RunName(BaseModel):
    """A run to load, by the name of its directory beside the served one."""

    model_config = ConfigDict(extra="forbid")

    run: Annotated[str, Field(min_length=1, max_length=200)]


class VersionChoice(BaseModel):
    """A loaded version; with a share below 1 it is tried on that share of the ids."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[str, Field(min_length=1, max_length=300)]
    share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0


def make_application(
    service: PredictionService, admittance: Admittance, *, hosts: frozenset[str] | None = None
) -> Application:
    """The whole application, guard included.

    Args:
        service: Who answers.
        admittance: Who may ask.
        hosts: Host names that requests may name; any if None.

    Returns:
        An ASGI application.
    """
    routes = FastAPI(
        title="Colonnade",
        description="Predictions of a vertically federated model.",
        # The usual pages load scripts from elsewhere; there is one of our own at /docs.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    routes.include_router(_predictions(service, admittance))
    routes.include_router(_version_routes(service, admittance))
    routes.include_router(_watching_routes(service, admittance))
    add_v2_routes(routes, service, admittance)
    _add_descriptions(routes, admittance)
    routes.exception_handler(RequestValidationError)(_say_what_is_wrong)
    routes.exception_handler(HTTPException)(_say)
    routes.exception_handler(ColonnadeError)(_say)
    routes.exception_handler(Exception)(_say_nothing)
    return Guard(QuickPredictions(routes, service, admittance), service, hosts)


def _predictions(service: PredictionService, admittance: Admittance) -> APIRouter:
    router = APIRouter(tags=["predictions"])
    # Not within Annotated: FastAPI finds annotations among the module's names only.
    asking = Depends(admittance.for_scope("predict"))

    @router.post(PREDICT, summary="Predict samples by id")
    async def predict(
        request: Request,
        wanted: PredictRequest,
        caller: Caller = asking,
    ) -> Response:
        async def answer() -> tuple[int, bytes]:
            arrived = request.scope["state"]["arrived"]
            return await predicted(service, admittance, caller, wanted, arrived)

        key = request.headers.get("idempotency-key")
        if key is None:
            status, content = await answer()
        elif len(key) > _LONGEST_KEY:
            raise HTTPException(422, f"idempotency key: at most {_LONGEST_KEY} characters")
        else:
            body = await request.body()
            status, content = await service.repeated.once(caller.name, key, body, answer)
        return Response(content, status, media_type="application/json")

    return router


def _version_routes(service: PredictionService, admittance: Admittance) -> APIRouter:
    router = APIRouter(tags=["versions"])
    manage = Depends(admittance.for_scope("manage"))

    def listed() -> dict[str, Any]:
        routing = service.versions.routing
        return {
            "current": routing.current,
            "canary": routing.canary,
            "share": routing.share,
            "previous": routing.previous,
            "loaded": sorted(service.versions.loaded),
        }

    @router.get("/v1/versions", dependencies=[manage], summary="Loaded versions")
    async def versions() -> dict[str, Any]:
        return listed()

    @router.post("/v1/versions/load", dependencies=[manage], summary="Load and warm a run")
    async def load(wanted: RunName) -> dict[str, Any]:
        model = await service.load(wanted.run)
        return {"version": model.version, **listed()}

    @router.post("/v1/versions/switch", dependencies=[manage], summary="Switch, or try on a share")
    async def switch(wanted: VersionChoice) -> dict[str, Any]:
        if wanted.share < 1.0:
            service.versions.try_out(wanted.version, wanted.share)
        else:
            service.versions.switch(wanted.version)
        return listed()

    @router.post("/v1/versions/rollback", dependencies=[manage], summary="Back to what was before")
    async def rollback() -> dict[str, Any]:
        service.versions.roll_back()
        return listed()

    @router.post("/v1/versions/unload", dependencies=[manage], summary="Let go of a version")
    async def unload(wanted: VersionChoice) -> dict[str, Any]:
        await service.unload(wanted.version)
        return listed()

    return router


def _watching_routes(service: PredictionService, admittance: Admittance) -> APIRouter:
    router = APIRouter(tags=["watching"])
    watch = Depends(admittance.for_scope("watch"))

    @router.get("/healthz", summary="Whether the process is sound")
    async def healthz() -> dict[str, Any]:
        return {"healthy": True}

    @router.get("/readyz", summary="Whether requests are answered now")
    async def readyz(response: Response) -> dict[str, Any]:
        because = service.unready()
        if because is None:
            return {"ready": True}
        response.status_code = 503
        return {"ready": False, "because": because}

    @router.get("/metrics", dependencies=[watch], summary="Prometheus' text")
    async def metrics() -> Response:
        return Response(service.watching.text(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/", dependencies=[watch], response_class=HTMLResponse, include_in_schema=False)
    async def page() -> str:
        return serving_page(service)

    return router


def _add_descriptions(routes: FastAPI, admittance: Admittance) -> None:
    watch = Depends(admittance.for_scope("watch"))

    @routes.get("/openapi.json", dependencies=[watch], include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        return routes.openapi()

    @routes.get("/docs", dependencies=[watch], response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> str:
        return operations_page(routes.openapi())


async def _say_what_is_wrong(request: Request, error: Exception) -> Response:
    """Where a request is wrong and how; never what it said."""
    assert isinstance(error, RequestValidationError)
    wrong = {
        f"{'.'.join(str(part) for part in item['loc'][:2])}: {item['type'].replace('_', ' ')}"
        for item in error.errors()[:20]
    }
    return error_answer(HTTPException(422, "; ".join(sorted(wrong))))


async def _say(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException | ColonnadeError)
    return error_answer(error)


async def _say_nothing(request: Request, error: Exception) -> Response:
    """What went wrong may quote data; the guard logs its kind."""
    return error_answer(HTTPException(500, "internal error"))
