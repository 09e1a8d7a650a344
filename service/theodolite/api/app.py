"""The service as one ASGI app."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import Depends, FastAPI
from fastapi.middleware.gzip import GZipMiddleware

from theodolite.api import (
    analyses,
    compare,
    exports,
    health,
    job_events,
    jobs,
    labels,
    objects,
    page,
    prompts,
    runs,
    specs,
    tables,
    uploads,
)
from theodolite.api.access import SECONDS_CACHED, Access
from theodolite.api.connections import log_failed_accept, log_warnings_once_a_minute
from theodolite.api.expiry import remove_expired
from theodolite.api.guards import Guard
from theodolite.api.openapi import complete_openapi
from theodolite.api.parameters import refuse_unknown_parameters
from theodolite.api.problems import add_handlers
from theodolite.api.request_metrics import Measured
from theodolite.api.shares import THREADS
from theodolite.settings import Settings
from theodolite.store.cache import Cache
from theodolite.version import __version__


def create_app(
    settings: Settings, *, open_without_tokens: bool = False, seconds_cached: float = SECONDS_CACHED
) -> FastAPI:
    """Return the service over a store.

    Args:
        settings: the store, the Ray cluster for survey jobs, and the limits.
        open_without_tokens: whether every caller has all scopes while the store has no tokens; only for loopback.
        seconds_cached: how long the list of bearer tokens is cached.
    """
    app = FastAPI(
        title="Theodolite",
        version=__version__,
        description="Read and compare surveys of the geometry of transformer language models, and submit new surveys.",
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
    )
    app.state.settings = settings
    app.state.store_check = health.StoreCheck(settings.store)
    app.state.cache = Cache(settings.results_cache_bytes)
    app.state.access = Access(settings.store, open_without_tokens=open_without_tokens, seconds_cached=seconds_cached)
    app.state.streams = Counter()  # of events, by caller
    app.state.is_stopping = lambda: False  # the server replaces it
    add_handlers(app)
    of_runs = (runs.router, labels.router, specs.run_router, analyses.router, compare.router)
    of_results = (prompts.router, tables.router, exports.router, objects.router)
    of_jobs = (jobs.router, job_events.router, specs.schema_router, specs.router, uploads.router)
    of_api = (*of_results, *of_runs, *of_jobs)
    others = (health.router, page.router)
    app.state.routes = [*app.routes, *(route for router in (*of_api, *others) for route in router.routes)]
    for router in of_api:
        app.include_router(router, dependencies=[Depends(refuse_unknown_parameters)])
    for router in others:
        app.include_router(router)
    complete_openapi(app)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)
    app.add_middleware(
        Guard,
        hosts=settings.hosts,
        requests_per_minute=settings.requests_per_minute,
        upload_bytes=settings.upload_bytes,
    )
    app.add_middleware(Measured)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    asyncio.get_running_loop().set_exception_handler(log_failed_accept)
    log_warnings_once_a_minute()
    expiry = asyncio.create_task(remove_expired(app.state.settings, app.state.cache))
    yield
    expiry.cancel()
