"""Remove expired uploads from time to time, while the service runs."""

import asyncio
import logging

import anyio.to_thread

from theodolite.settings import Settings
from theodolite.store.cache import Cache
from theodolite.submission.surveys import remove_expired_uploads

SECONDS = 3600.0
"""Time between two removals."""

_log = logging.getLogger(__name__)


async def remove_expired(settings: Settings, cache: Cache) -> None:
    """Remove expired uploads again and again; a failure is only logged."""
    own_thread = anyio.CapacityLimiter(1)  # a slow store must not occupy those of responses
    while True:
        try:
            await anyio.to_thread.run_sync(
                remove_expired_uploads, settings, cache, limiter=own_thread, abandon_on_cancel=True
            )
        except Exception as error:  # else the first one would end the removal for the life of the service
            _log.warning("expired uploads are not removed: %s: %s", type(error).__name__, error)
        await asyncio.sleep(SECONDS)
