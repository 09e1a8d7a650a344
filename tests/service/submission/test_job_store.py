"""The records of survey jobs: they are not changed, the first writer wins, and every service reads the same."""

import random
import re
import threading
from pathlib import Path

import pytest
from support.sealed import reseal
from support.serving import SPEC

from theodolite.spec_file import parse_spec
from theodolite.store.cache import Cache
from theodolite.submission.job_store import (
    End,
    create_attempt,
    end_attempt,
    read_job_spec,
    read_jobs,
    record_run,
    record_sent,
    store_spec,
)

JOB = parse_spec(SPEC).digest()


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path):
    assert store_spec(str(tmp_path), parse_spec({**SPEC, "name": "first"})) == JOB
    return str(tmp_path)


def only(store, cache=None):
    (job,) = read_jobs(store, cache or Cache(10**6))
    return job


def test_a_spec_is_stored_under_its_digest_and_comes_back(store):
    assert read_job_spec(store, JOB) == parse_spec({**SPEC, "name": "first"})
    assert read_job_spec(store, JOB).digest() == JOB
    assert read_job_spec(store, "0" * 64) is None
    assert list(files(store)) == [f"jobs/{JOB}/spec.json"]


def test_the_same_spec_under_another_label_changes_nothing(store):
    before = files(store)
    assert store_spec(store, parse_spec({**SPEC, "name": "second"})) == JOB
    assert files(store) == before


def test_fields_that_were_not_set_stay_so(store):
    assert "capture" not in read_job_spec(store, JOB).model_fields_set


def test_a_spec_with_explicit_sites_is_replaced_by_one_without(store):
    default = {"sites": ["resid_pre", "resid_mid"]}
    assert store_spec(store, parse_spec({**SPEC, "capture": default})) == JOB
    assert read_job_spec(store, JOB).capture.model_fields_set == {"sites"}
    assert store_spec(store, parse_spec(SPEC)) == JOB
    assert "capture" not in read_job_spec(store, JOB).model_fields_set


def test_a_job_without_an_attempt_is_known(store):
    job = only(store)
    assert (job.id, job.attempt, job.sent, job.end, job.run_id) == (JOB, None, False, None, None)


def test_an_attempt_is_claimed_once(store):
    first = create_attempt(store, JOB, 1, "me")
    assert create_attempt(store, JOB, 1, "you") is None
    assert (first.number, first.owner) == (1, "me")
    assert re.fullmatch(r"[a-z0-9-]{1,64}", first.submission)
    assert only(store).attempt == first
    second = create_attempt(store, JOB, 2, "you")
    assert second.submission != first.submission
    assert only(store).attempt == second


def test_one_of_many_concurrent_claims_succeeds(store):
    start, got = threading.Barrier(8), []

    def claim(owner):
        start.wait()
        got.append(create_attempt(store, JOB, 1, owner))

    threads = [threading.Thread(target=claim, args=(f"owner-{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [attempt for attempt in got if attempt]
    assert only(store).attempt == winner


def test_submissions_of_two_jobs_have_two_names(store):
    other = store_spec(store, parse_spec({**SPEC, "gram": {"samples": 7}}))
    names = {create_attempt(store, job_id, 1, "me").submission for job_id in (JOB, other)}
    assert len(names) == 2


def test_the_first_end_wins_and_belongs_to_its_attempt(store):
    create_attempt(store, JOB, 1, "me")
    end_attempt(store, JOB, 1, End("stopped"))
    end_attempt(store, JOB, 1, End("succeeded"))
    assert only(store).end == End("stopped")
    create_attempt(store, JOB, 2, "me")
    assert only(store).end is None
    end_attempt(store, JOB, 1, End("failed", "late"))
    assert only(store).end is None
    end_attempt(store, JOB, 2, End("failed", "why"))
    assert only(store).end == End("failed", "why")


def test_the_tenth_attempt_comes_after_the_ninth(store):
    for number in range(1, 12):
        create_attempt(store, JOB, number, "me")
    assert only(store).attempt.number == 11


def test_an_attempt_that_was_sent_is_known_by_its_number(store):
    create_attempt(store, JOB, 1, "me")
    assert not only(store).sent
    record_sent(store, JOB, 1)
    assert only(store).sent
    create_attempt(store, JOB, 2, "me")
    assert not only(store).sent


def test_the_run_is_recorded_once(store):
    record_run(store, JOB, "tiny-0")
    record_run(store, JOB, "tiny-1")
    assert only(store).run_id == "tiny-0"


def test_the_cache_never_hides_later_records(store):
    cache = Cache(10**6)
    seen = [only(store, cache)]
    for step in (
        lambda: create_attempt(store, JOB, 1, "me"),
        lambda: record_sent(store, JOB, 1),
        lambda: record_run(store, JOB, "tiny-0"),
        lambda: end_attempt(store, JOB, 1, End("failed", "why")),
        lambda: create_attempt(store, JOB, 2, "me"),
        lambda: end_attempt(store, JOB, 2, End("succeeded")),
    ):
        step()
        seen.append(only(store, cache))
        assert seen[-1] == only(store)
    assert len({repr(job) for job in seen}) == len(seen)


def test_two_stores_that_share_a_cache_do_not_mix(store, tmp_path):
    cache, other = Cache(10**6), str(tmp_path / "other")
    store_spec(other, parse_spec({**SPEC, "name": "second"}))
    create_attempt(store, JOB, 1, "me")
    create_attempt(other, JOB, 1, "you")
    (mine,), (yours,) = read_jobs(store, cache), read_jobs(other, cache)
    assert (mine.spec.name, mine.attempt.owner) == ("first", "me")
    assert (yours.spec.name, yours.attempt.owner) == ("second", "you")


def test_one_job_is_read_alone(store):
    other = store_spec(store, parse_spec({**SPEC, "gram": {"samples": 7}}))
    assert [job.id for job in read_jobs(store, Cache(0), other)] == [other]
    assert read_jobs(store, Cache(0), "0" * 64) == []
    assert {job.id for job in read_jobs(store, Cache(0))} == {JOB, other}


def test_the_latest_submitted_comes_first(store):
    ids = [store_spec(store, parse_spec({**SPEC, "gram": {"samples": number}})) for number in (5, 6, 7)]
    for number, job_id in enumerate([*ids, JOB]):
        create_attempt(store, job_id, 1, "me")
        file = Path(store) / "jobs" / job_id / "attempts" / "00001.json"
        stamp = f"2026-01-0{number + 1}T00:00:00+00:00"
        reseal(file, submitted=stamp)
    assert [job.id for job in read_jobs(store, Cache(0))] == [JOB, *reversed(ids)]


def test_other_files_in_the_folder_are_not_survey_jobs(store):
    (Path(store) / "jobs" / "README").write_text("x")
    (Path(store) / "jobs" / "0000").mkdir()
    (Path(store) / "jobs" / "0000" / "notes.txt").write_text("x")
    assert [job.id for job in read_jobs(store, Cache(0))] == [JOB]


def test_a_missing_store_has_no_survey_jobs(tmp_path):
    assert read_jobs(str(tmp_path / "nowhere"), Cache(0)) == []
    assert not (tmp_path / "nowhere").exists()


def test_no_flipped_bit_of_a_record_changes_what_is_read(store):
    create_attempt(store, JOB, 1, "me")
    record_run(store, JOB, "tiny-0")
    end_attempt(store, JOB, 1, End("succeeded"))
    whole = only(store)
    rng = random.Random(0)
    for name in ("attempts/00001.json", "ends/00001.json", "run.json", "spec.json"):
        file = Path(store) / "jobs" / JOB / name
        content = file.read_bytes()
        for _ in range(100):
            place, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
            file.write_bytes(content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :])
            found = read_jobs(store, Cache(0))
            assert found in ([], [whole]) or found[0].end == End(
                "failed", f"jobs/{JOB}/{name} is damaged; submit the survey again"
            ), (name, place, bit)
        file.write_bytes(content)


@pytest.mark.parametrize("name", ["attempts/00001.json", "ends/00001.json", "run.json", "spec.json"])
def test_a_record_of_another_survey_job_is_not_believed(store, name, caplog):
    other = store_spec(store, parse_spec({**SPEC, "gram": {"samples": 7}}))
    for number, job_id in enumerate((JOB, other)):
        create_attempt(store, job_id, 1, f"owner {number}")
        record_run(store, job_id, f"tiny-{number}")
        end_attempt(store, job_id, 1, End("failed", f"reason {number}"))
    (Path(store) / "jobs" / JOB / name).write_bytes((Path(store) / "jobs" / other / name).read_bytes())
    found = read_jobs(store, Cache(0), JOB)
    if name == "spec.json":
        assert found == []
        assert f"jobs/{JOB}/spec.json cannot be read" in caplog.text
    else:
        assert "is damaged" in found[0].end.reason


def test_a_damaged_spec_and_a_damaged_run_are_written_again(store):
    record_run(store, JOB, "tiny-0")
    for name in ("run.json", "spec.json"):
        (Path(store) / "jobs" / JOB / name).write_bytes(b"{")
    cache = Cache(10**6)
    assert (read_jobs(store, cache), read_job_spec(store, JOB)) == ([], None)
    store_spec(store, parse_spec({**SPEC, "name": "first"}))
    assert "run.json is damaged" in only(store, cache).end.reason
    record_run(store, JOB, "tiny-0")
    assert (only(store, cache).run_id, only(store, cache).end) == ("tiny-0", None)


def test_a_record_with_a_field_of_another_version_is_damaged(store):
    create_attempt(store, JOB, 1, "me")
    reseal(Path(store) / "jobs" / JOB / "attempts" / "00001.json", later=1)
    assert only(store).end.state == "failed"
