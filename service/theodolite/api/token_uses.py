"""Store the hour in which each bearer token was last used, without delaying a request."""

import logging
import threading
from datetime import UTC, datetime

from theodolite.api.credentials import hour_of, store_use
from theodolite.errors import StoreError

_log = logging.getLogger(__name__)


class Uses:
    """Stores the last use of tokens, at most once an hour for each token.

    Args:
        store: URL of the store.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self._hours: dict[str, str] = {}
        """The hour of the last attempt to store a use, by the token's id."""

    def record(self, token_id: str) -> None:
        """Store that a token is used now, from another thread; a failure is only logged."""
        now = datetime.now(UTC)
        hour = hour_of(now)
        if self._hours.get(token_id) != hour:
            self._hours[token_id] = hour
            # Not a thread of the pool, which computes responses: a slow store would occupy it.
            threading.Thread(target=self._write, args=(token_id, now), daemon=True).start()

    def _write(self, token_id: str, now: datetime) -> None:
        try:
            store_use(self._store, token_id, now)
        except StoreError as error:
            _log.warning("the last use of token %s is not stored: %s", token_id, error)
