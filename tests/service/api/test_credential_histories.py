"""Any history of tokens, with stores that fail on the way: who had access, and who must not have it."""

import asyncio
import shutil
import tempfile
from contextlib import suppress
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from theodolite.api import credentials
from theodolite.api.access import Access
from theodolite.api.problems import Problem
from theodolite.errors import StoreError


class Histories(RuleBasedStateMachine):
    """Tokens that are created, revoked and used; every access reads the store again."""

    def __init__(self) -> None:
        super().__init__()
        self.store = tempfile.mkdtemp()
        self.valid: dict[str, tuple[str, tuple[str, ...]]] = {}  # id and scopes, by token
        self.invalid: set[str] = set()
        self.was_closed = False  # a creation has begun, so the service must never be open again

    def teardown(self) -> None:
        shutil.rmtree(self.store)

    @rule(
        scopes=st.lists(st.sampled_from(credentials.SCOPES), min_size=1, max_size=2, unique=True), expired=st.booleans()
    )
    def create(self, scopes, expired):
        token, credential = credentials.create_credential(self.store, scopes, days=0 if expired else None)
        self.was_closed = True
        if expired:
            self.invalid.add(token)
        else:
            self.valid[token] = credential.id, credential.scopes

    @rule(writes=st.integers(0, 2), took_effect=st.booleans())
    def create_while_the_store_fails(self, writes, took_effect):
        put_new, done = credentials.put_new, 0

        def failing(*arguments):
            nonlocal done
            done += 1
            if done <= writes:
                return put_new(*arguments)
            if took_effect:
                put_new(*arguments)
            raise StoreError("503")

        with patch.object(credentials, "put_new", failing), suppress(StoreError):
            token, credential = credentials.create_credential(self.store, ["read"])
            self.valid[token] = credential.id, credential.scopes
        self.was_closed |= writes > 0 or took_effect

    @rule(data=st.data())
    def revoke(self, data):
        if self.valid:
            token = data.draw(st.sampled_from(sorted(self.valid)))
            identity, _ = self.valid.pop(token)
            assert credentials.revoke_credential(self.store, identity)
            assert not credentials.revoke_credential(self.store, identity)
            self.invalid.add(token)

    @invariant()
    def only_valid_tokens_open_the_service(self):
        for token, (identity, scopes) in self.valid.items():
            caller = self.caller(token)
            assert (caller.id, caller.scopes) == (identity, scopes)
        for token in (*self.invalid, "theodolite_0_x", ""):
            assert self.caller(token) is None or not self.was_closed
        assert (self.caller(None) is None) == self.was_closed

    def caller(self, token):
        """Return the caller of a token, or None if it is refused."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            return asyncio.run(Access(self.store, open_without_tokens=True, seconds_cached=0).caller(headers))
        except Problem:
            return None


Histories.TestCase.settings = settings(stateful_step_count=12, deadline=None)
test_histories = Histories.TestCase
