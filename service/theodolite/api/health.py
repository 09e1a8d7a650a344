"""Define the routes for liveness, readiness and metrics."""

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from theodolite import metrics
from theodolite.api.access import metrics_reader
from theodolite.api.problems import Problem
from theodolite.errors import StoreError
from theodolite.store.runs import list_run_ids

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Return 200 while the process runs."""
    return {"status": "alive"}


@router.get("/readyz", responses={503: {"description": "The store cannot be reached."}})
def ready(request: Request) -> dict[str, str]:
    """Return 200 if the service can reach the store, and 503 otherwise."""
    try:
        list_run_ids(request.app.state.settings.store)
    except StoreError as error:  # its message contains the URL of the store
        metrics.count_store_error(error)
        raise Problem(503, "store", "the store cannot be reached") from error
    return {"status": "ready"}


@router.get("/metrics", dependencies=[Depends(metrics_reader)], response_class=Response)
def prometheus() -> Response:
    """Return the metrics in Prometheus' text format; needs a token with the scope read, except on loopback."""
    return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)
