"""Routes for liveness, readiness and metrics."""

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
    """The process answers."""
    return {"status": "alive"}


@router.get("/readyz", responses={503: {"description": "The store cannot be reached."}})
def ready(request: Request) -> dict[str, str]:
    """The store can be reached; 503 where it cannot."""
    try:
        list_run_ids(request.app.state.settings.store)
    except StoreError as error:  # its message contains the URL of the store
        metrics.count_store_error(error)
        raise Problem(503, "store", "the store cannot be reached") from error
    return {"status": "ready"}


@router.get("/metrics", dependencies=[Depends(metrics_reader)], response_class=Response)
def prometheus() -> Response:
    """Metrics in Prometheus' text format; needs a token except on loopback."""
    return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)
