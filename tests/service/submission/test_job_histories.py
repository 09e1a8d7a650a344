"""Any history of one survey job: several services submit and stop it, answers get lost, the cluster forgets."""

import json
from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from obstore.exceptions import GenericError
from support.serving import SPEC
from support.stepped_store import OUTCOMES, REPEAT, SUCCEED, SteppedObstore, Writer, stepped

from theodolite.errors import ClusterError, StoreError
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.store.cache import Cache
from theodolite.store.checksums import seal, unseal
from theodolite.store.objects import get, keys, put
from theodolite.submission import job_store, surveys
from theodolite.submission.job_store import End
from theodolite.submission.ray_jobs import ClusterState

SETTINGS = Settings(store="memory")
SURVEY = parse_spec(SPEC)
JOB = SURVEY.digest()
LIVE = surveys.UNFINISHED


class Cluster:
    """The Ray jobs of a cluster, by submission id; each request may fail or lose its answer."""

    def __init__(self) -> None:
        self.jobs: dict[str, str] = {}
        self.submitted: list[str] = []

    def submit(self, _settings, _store, _job_id, attempt):
        def perform():
            assert attempt.submission not in self.submitted
            self.submitted.append(attempt.submission)
            self.jobs[attempt.submission] = "queued"

        self._request("submit", perform)

    def states(self, _settings):
        return self._request("list", lambda: {name: ClusterState(state, None) for name, state in self.jobs.items()})

    def state(self, _settings, submission):
        return self._request(
            "read", lambda: ClusterState(self.jobs[submission], None) if submission in self.jobs else None
        )

    def stop(self, _settings, submission):
        self._request("stop", lambda: self.jobs.get(submission) in LIVE and self.jobs.update({submission: "stopped"}))

    @staticmethod
    def _request(name, perform):
        try:
            return stepped(name, "cluster", perform)
        except GenericError as error:
            raise ClusterError(str(error)) from error


class JobHistories(RuleBasedStateMachine):
    """Services act on one survey job, one operation of the store or of the cluster at a time."""

    services = Bundle("services")

    @initialize()
    def begin(self):
        self.obstore, self.cluster = SteppedObstore(), Cluster()
        self.location = self.obstore.location
        self.patches = ExitStack()
        for place, value in {
            "theodolite.store.objects.obstore": self.obstore,
            "theodolite.submission.job_store.open_location": lambda _store, create=False: self.location,
            "theodolite.submission.surveys.submit": self.cluster.submit,
            "theodolite.submission.surveys.stop": self.cluster.stop,
            "theodolite.submission.surveys.cluster_state": self.cluster.state,
            "theodolite.submission.surveys.cluster_states": self.cluster.states,
            "theodolite.submission.surveys.check_version": lambda _settings: None,
        }.items():
            self.patches.enter_context(patch(place, value))
        self.known: list[Writer] = []
        self.records: dict[str, bytes] = {}

    def teardown(self):
        if not hasattr(self, "patches"):
            return
        with self.patches:
            for service in self.known:
                service.finish()
            self.records_never_change()
            self.time_passes()
            surveys.submit_survey(SETTINGS, SURVEY, "me", Cache(0))
            job = self.job()
            state = surveys.job_states(SETTINGS, [job])[JOB].state
            assert state in (*LIVE, "succeeded"), "a later submission always resumes the survey"

    @rule(target=services, owner=st.sampled_from(["me", "you"]))
    def submit(self, owner):
        return self._start(lambda: surveys.submit_survey(SETTINGS, SURVEY, owner, Cache(0)))

    @rule()
    def submit_at_once(self):
        self.submit("me").finish()

    @rule(target=services)
    def stop(self):
        def stop():
            if job := self.job():
                surveys.stop_survey(SETTINGS, job)

        return self._start(stop)

    def _start(self, action):
        service = Writer(action)
        self.known.append(service)
        return service

    @rule(service=services, outcome=st.sampled_from([SUCCEED, SUCCEED, *OUTCOMES]))
    def step(self, service, outcome):
        if service.operation is None:
            return
        is_repeatable = service.operation[0] in ("put", "get", "list", "read", "stop")
        service.step(SUCCEED if outcome == REPEAT and not is_repeatable else outcome)

    @rule(service=consumes(services))
    def let_finish(self, service):
        service.finish()

    @rule(data=st.data())
    def the_cluster_goes_on(self, data):
        live = sorted(name for name, state in self.cluster.jobs.items() if state in LIVE)
        if not live:
            return
        name = data.draw(st.sampled_from(live))
        state = data.draw(st.sampled_from(["running", "succeeded", "failed"]))
        self.cluster.jobs[name] = state
        if state != "running":  # the Ray job itself writes its end, as its last act
            number = int(name.split("-")[2])
            job_store.end_attempt(SETTINGS.store, JOB, number, End(state, None))

    @rule()
    def the_cluster_restarts(self):
        self.cluster.jobs.clear()

    @rule()
    def time_passes(self):
        """Make each attempt an hour older, so that none is in transit any more."""
        if any(service.operation is not None for service in self.known):
            return  # one that pauses for an hour between two requests would submit late
        for key in keys(self.location, f"jobs/{JOB}/attempts"):
            old = unseal(get(self.location, key)) | {"submitted": "2020-01-01T00:00:00+00:00"}
            put(self.location, key, seal(old))
            self.records[key] = get(self.location, key)

    @invariant()
    def records_never_change(self):
        if not hasattr(self, "patches"):
            return
        for key in keys(self.location, "jobs"):
            content = get(self.location, key)
            assert self.records.setdefault(key, content) == content
        for service in self.known:
            assert service.error is None or isinstance(service.error, ClusterError | StoreError), service.error

    @invariant()
    def at_most_one_ray_job_lives(self):
        if not hasattr(self, "patches"):
            return
        assert sum(state in LIVE for state in self.cluster.jobs.values()) <= 1
        numbers = [int(key.rpartition("/")[2][:5]) for key in sorted(keys(self.location, f"jobs/{JOB}/attempts"))]
        assert numbers == list(range(1, len(numbers) + 1))

    @invariant()
    def a_finished_survey_is_not_submitted_again(self):
        if not hasattr(self, "patches"):
            return
        ends = keys(self.location, f"jobs/{JOB}/ends")
        succeeded = [key for key in ends if json.loads(get(self.location, key))["state"] == "succeeded"]
        attempts = keys(self.location, f"jobs/{JOB}/attempts")
        assert not succeeded or min(succeeded).rpartition("/")[2] == max(attempts).rpartition("/")[2]

    def job(self):
        """Return the survey job, or None before it is stored."""
        return next(iter(job_store.read_jobs(SETTINGS.store, Cache(0), JOB)), None)


def test_a_survey_that_ended_while_it_was_submitted_again_stays_ended():
    """The store is read before the Ray job ends, and the cluster is asked after its restart."""
    history = JobHistories()
    history.begin()
    history.submit_at_once()
    again = history.submit("me")
    again.step(SUCCEED)
    job_store.end_attempt(SETTINGS.store, JOB, 1, End("succeeded"))
    history.the_cluster_restarts()
    again.finish()
    history.a_finished_survey_is_not_submitted_again()
    history.teardown()


TestJobHistories = JobHistories.TestCase
TestJobHistories.settings = settings(
    max_examples=3 * settings.default.max_examples,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
