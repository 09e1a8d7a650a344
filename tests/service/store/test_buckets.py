"""The credentials, the region and the endpoint of buckets, and what a user reads if they are wrong."""

import importlib.util
import re

import pytest
from support.each import each
from support.faulty_bucket import ENVIRONMENT, faulty_bucket

from theodolite.errors import StoreError
from theodolite.store import writable
from theodolite.store.buckets import _profile_options
from theodolite.store.objects import absolute, free_bytes, get, keys, open_location, open_zarr_store, put
from theodolite.store.runs import list_run_ids
from theodolite.store.writable import check_writable

KEYS = "[research]\naws_access_key_id = profile-key\naws_secret_access_key = secret\n"


@pytest.fixture(scope="module")
def bucket():
    with faulty_bucket() as bucket:
        yield bucket


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder without AWS files, and an environment without AWS variables."""
    for name in [*ENVIRONMENT, "AWS_ENDPOINT", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_DEFAULT_REGION"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    check_writable.cache_clear()
    return tmp_path


@pytest.fixture
def in_environment(home, bucket, monkeypatch):
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)


def without_boto3(monkeypatch):
    _profile_options.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def write_profile(home, bucket, config=""):
    (home / ".aws/credentials").write_text(KEYS)
    endpoint = bucket.environment["AWS_ENDPOINT"]
    (home / ".aws/config").write_text(f"[profile research]\nregion = eu-west-1\nendpoint_url = {endpoint}\n{config}")


def test_a_profile_gives_credentials_region_and_endpoint(home, bucket, monkeypatch):
    write_profile(home, bucket)
    monkeypatch.setenv("AWS_PROFILE", "research")
    check_writable(bucket.url)
    location = open_location(f"{bucket.url}/profile")
    put(location, "key", b"bytes")
    assert get(location, "key") == b"bytes"
    assert "Credential=profile-key/" in bucket.signature
    assert "/eu-west-1/s3/" in bucket.signature
    assert open_zarr_store(bucket.url) is not None


def test_the_environment_wins_over_the_profile(home, bucket, monkeypatch):
    write_profile(home, bucket)
    monkeypatch.setenv("AWS_PROFILE", "research")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setattr(writable, "_RETRY_SECONDS", 0.5)
    assert open_location(bucket.url).config["region"] == "us-west-2"
    with pytest.raises(StoreError, match=r"no server listens there; .* \(server http://127.0.0.1:1\)"):
        check_writable(bucket.url)


def test_keys_in_the_environment_come_before_those_of_a_profile(in_environment, home, bucket, monkeypatch):
    write_profile(home, bucket)
    monkeypatch.setenv("AWS_PROFILE", "research")
    check_writable(bucket.url)
    assert "Credential=key/" in bucket.signature
    assert "/us-east-1/s3/" in bucket.signature


def test_keys_in_the_environment_need_no_profile(in_environment, home, bucket, monkeypatch):
    (home / ".aws/credentials").write_text("[other]\n")
    without_boto3(monkeypatch)
    check_writable(bucket.url)


@pytest.mark.parametrize("profile", ["research", None])
def test_a_profile_without_boto3_is_refused(home, bucket, monkeypatch, profile):
    write_profile(home, bucket)
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    without_boto3(monkeypatch)
    what = "the AWS profile 'research'" if profile else rf"{home}/.aws/credentials .* \(AWS_PROFILE is not set\)"
    with pytest.raises(StoreError, match=f"cannot read {what}: .*run `pip install boto3`, or set AWS_ACCESS_KEY_ID"):
        check_writable(bucket.url)


def test_settings_without_keys_leave_the_role_of_the_machine_to_obstore(home, bucket, monkeypatch):
    """Without boto3, which reads the role too."""
    (home / ".aws/config").write_text("[default]\\nregion = eu-west-1\\n")
    without_boto3(monkeypatch)
    assert "credential_provider" not in _profile_options((), str(home))


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("missing", r"profile 'missing' gives no credentials: .*; set AWS_PROFILE to one of research, sso, empty"),
        (None, r"\(AWS_PROFILE is not set\) gives no credentials: .*; set AWS_PROFILE to one of research, sso, empty"),
        ("sso", "profile 'sso' gives no credentials: .*SSO.*; log in"),
        ("empty", "profile 'empty' gives no credentials: it has no credentials; log in"),
    ],
)
def test_a_profile_without_credentials_is_refused(home, bucket, monkeypatch, profile, message):
    sso = "[profile sso]\nsso_session = x\nsso_account_id = 1\nsso_role_name = R\nregion = eu-west-1\n"
    session = "[sso-session x]\nsso_region = eu-west-1\nsso_start_url = https://x.awsapps.com/start\n"
    write_profile(home, bucket, f"{sso}{session}[profile empty]\nregion = eu-west-1\n")
    if profile:
        monkeypatch.setenv("AWS_PROFILE", profile)
    with pytest.raises(StoreError, match=message) as error:
        check_writable(bucket.url)
    assert "\n" not in str(error.value)


@each(
    "status, code, reason",
    [
        (403, "InvalidAccessKeyId", "the server does not know the access key"),
        (403, "SignatureDoesNotMatch", "the secret key does not belong to the access key"),
        (400, "ExpiredToken", "the credentials have expired"),
        (403, "AccessDenied", "the credentials do not allow it"),
        (404, "NoSuchBucket", "there is no such bucket"),
        (400, "AuthorizationHeaderMalformed", r"the bucket is in another region; .* \(region eu-west-1, server"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
    ],
)
def test_an_error_of_the_server_is_explained_in_one_line(in_environment, bucket, monkeypatch, status, code, reason):
    monkeypatch.setattr(bucket, "refusal", (status, code))
    with pytest.raises(StoreError, match=f"cannot write to the store s3://surveys/store: {reason}") as error:
        check_writable(bucket.url)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "read", [lambda url: get(open_location(url), "key"), lambda url: keys(open_location(url)), list_run_ids]
)
def test_a_missing_bucket_is_not_read_as_an_empty_store(in_environment, read):
    with pytest.raises(StoreError, match="there is no such bucket; create it"):
        read("s3://missing/store")


@each(
    "changed, reason",
    [
        ({"AWS_ALLOW_HTTP": ""}, "the endpoint is http://; set AWS_ALLOW_HTTP=true"),
        ({"AWS_SECRET_ACCESS_KEY": ""}, "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ALLOW_HTTP": "perhaps"}, "perhaps"),
        ({"AWS_ENDPOINT": "minio:9000"}, "AWS_ENDPOINT: given 'minio:9000'; allowed: http://HOST:PORT or https://HOST"),
        ({"AWS_ENDPOINT": "http://a b"}, "AWS_ENDPOINT: given 'http://a b'; allowed: "),
        ({"AWS_ENDPOINT": "http://[::1"}, "AWS_ENDPOINT: given"),
        ({"AWS_ENDPOINT": "http://minio:99999"}, "AWS_ENDPOINT: given"),
        ({"AWS_ENDPOINT": "http://hé"}, "AWS_ENDPOINT: given"),
        ({"AWS_REGION": "Frankfurt 1"}, "AWS_REGION: given 'Frankfurt 1'; allowed: the name of a region"),
        ({"AWS_SECRET_ACCESS_KEY": "hunter2\n"}, "^AWS_SECRET_ACCESS_KEY has a line break, another control character"),
        ({"AWS_ACCESS_KEY_ID": "hunter2\nx"}, "^AWS_ACCESS_KEY_ID has a line break"),
    ],
)
def test_a_wrong_variable_is_named(in_environment, bucket, monkeypatch, changed, reason):
    for name, value in changed.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=reason) as error:
        check_writable(bucket.url)
    assert "\n" not in str(error.value)
    assert "hunter2" not in str(error.value)


@each(
    "url",
    [
        "s3:///x",
        "s3://bucket/x#1",
        "gs://bucket?x",
        "ftp://host/x",
        "http://host/x",
        "memory://x",
        "S3://bucket/x",
        "s3:/bucket/x",
        "s3:bucket",
        "file://x/y",
    ],
)
def test_another_url_is_refused_and_never_taken_for_a_folder(tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    for use in (open_location, check_writable, free_bytes, list_run_ids):
        with pytest.raises(
            StoreError, match=rf"cannot open the store {re.escape(url)}.*; allowed: a folder, file:///FOLDER"
        ):
            use(url)
    assert list(tmp_path.iterdir()) == []


def test_the_home_of_an_unknown_user_is_refused():
    for use in (open_location, absolute):
        with pytest.raises(StoreError, match="cannot open the store ~nosuchuser/x: there is no such home folder"):
            use("~nosuchuser/x")


def test_a_folder_may_have_a_colon_in_its_name(tmp_path):
    check_writable(f"{tmp_path}/a:b")
    check_writable(f"file://{tmp_path}/a:b")
    assert (tmp_path / "a:b").is_dir()


def test_the_key_of_a_service_account_may_have_lines(monkeypatch):
    key = '{\n  "type": "service_account",\n  "private_key": "-----BEGIN PRIVATE KEY-----"\n}\n'
    monkeypatch.setenv("GOOGLE_CREDENTIALS", key)
    for url in ("gs://bucket/x", "s3://bucket/x"):
        open_location(url)
