"""Open a bucket with the credentials, the region and the endpoint of the environment or of an AWS profile.

The library obstore reads the environment. The files of AWS profiles, and logins of AWS IAM Identity Center (SSO), are
read by boto3, if it is installed.
"""

import importlib.util
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from obstore.store import from_url

from theodolite.errors import StoreError, first_line
from theodolite.proxies import reach_local_addresses_directly

_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables from which obstore gets credentials."""

_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")

_ENDPOINT = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:]+\])(:(?P<port>\d{1,5}))?(/[\w.~/-]*)?", re.ASCII)

_PREFIXES = {"s3": "AWS_", "az": "AZURE_", "gs": "GOOGLE_"}

_KEYS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

_REASONS = {
    "169.254.169.254/latest": f"no credentials of AWS are set, and this machine has no role; set {_KEYS}, or "
    "AWS_PROFILE",
    "169.254.169.254/computeMetadata": "no credentials of Google are set, and this machine has no service account; set "
    "GOOGLE_APPLICATION_CREDENTIALS to a key file",
    "169.254.169.254/metadata": "no credentials of Azure are set, and this machine has no identity; set "
    "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN",
    "Account must be specified": "no storage account is set; set AZURE_STORAGE_ACCOUNT_NAME",
    "Missing SecretAccessKey": "AWS_ACCESS_KEY_ID is set without AWS_SECRET_ACCESS_KEY; set both",
    "Missing AccessKeyId": "AWS_SECRET_ACCESS_KEY is set without AWS_ACCESS_KEY_ID; set both",
    "InvalidAccessKeyId": f"the server does not know the access key; check {_KEYS}, or the profile",
    "SignatureDoesNotMatch": f"the secret key does not belong to the access key; check {_KEYS}, or the profile",
    "ExpiredToken": "the credentials have expired; log in again",
    "InvalidToken": "the session token is not valid; check AWS_SESSION_TOKEN, or log in again",
    "AuthenticationFailed": "the server rejects the credentials; check AZURE_STORAGE_ACCOUNT_KEY",
    "NoSuchBucket": "there is no such bucket; create it, or check the URL and the endpoint",
    "ContainerNotFound": "there is no such container; create it, or check the URL and the account",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION to it",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION to it",
    "IllegalLocationConstraintException": "the bucket is in another region; set AWS_REGION to it",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "AccessDenied": "the credentials do not allow it; grant them read and write access to the bucket",
    "BadScheme": "the endpoint is http://; set AWS_ALLOW_HTTP=true to allow it, or use https://",
    "conditional put is disabled": "AWS_CONDITIONAL_PUT disables it; unset this variable",
    "501 Not Implemented": "the server does not implement this request; use another server",
    "dns error": "the host is unknown; check the URL and the endpoint",
    "Connection refused": "no server listens there; check the endpoint (AWS_ENDPOINT_URL)",
}
"""Explanations of errors, by a part of their messages."""

_MISSING_BUCKETS = ("NoSuchBucket", "ContainerNotFound")


def open_bucket(url: str, **options: Any) -> Any:
    """Return the objects below an s3://, gs:// or az:// URL; `options` are those of obstore.

    Raises:
        StoreError: the selected AWS profile gives no credentials, or boto3 is missing.
    """
    reach_local_addresses_directly()
    given = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES[url[:2]]) and value}
    _check_variables(given)
    if url.startswith("s3://"):
        options |= _profile_options(tuple(sorted(given.items())), os.path.expanduser("~"))
    return from_url(url, **options)


def explanation(error: BaseException) -> str:
    """Return the reason of an error of a store and what to do, or the first line of an unknown error."""
    text = str(error)
    reason = next((reason for part, reason in _REASONS.items() if part in text), None)
    if reason is None:
        return first_line(error)
    server = re.search(r"https?://[^/\s]+", text)
    region = re.search(r"<Region>([\w-]+)</Region>", text)
    facts = [f"region {region[1]}"] if region else []
    if server and "169.254." not in server[0]:
        facts.append(f"server {server[0]}")
    return f"{reason} ({', '.join(facts)})" if facts else reason


def is_missing_bucket(error: BaseException) -> bool:
    """Return whether the bucket itself, and not only an object in it, is missing."""
    return any(code in str(error) for code in _MISSING_BUCKETS)


def _check_variables(given: Mapping[str, str]) -> None:
    """Raise StoreError for a value that ends the library's process: a key with a line break, an endpoint without host.

    The message names the variable without its value, which may be secret.
    """
    for name, value in given.items():
        if value.lstrip().startswith("{"):  # the key of a service account
            continue
        if not value.isprintable() or value != value.strip():
            raise StoreError(f"{name} has a line break, another control character or an outer blank; remove it")
        if name in _ENDPOINTS and not ((url := _ENDPOINT.fullmatch(value)) and int(url["port"] or 80) < 2**16):
            raise StoreError(f"{name}: given {value!r}; allowed: http://HOST:PORT or https://HOST")
        if name in ("AWS_REGION", "AWS_DEFAULT_REGION") and not re.fullmatch(r"[\w-]+", value):
            raise StoreError(f"{name}: given {value!r}; allowed: the name of a region, such as us-east-1")


@lru_cache(maxsize=8)
def _profile_options(variables: tuple[tuple[str, str], ...], home: str) -> dict[str, Any]:
    """Return obstore's options from an AWS profile; none if obstore itself finds the credentials.

    Args:
        variables: names and values of the environment's variables of providers, which select the profile.
        home: the user's home folder, which has the files of profiles.
    """
    given = dict(variables)
    profile = given.get("AWS_PROFILE") or given.get("AWS_DEFAULT_PROFILE")
    has_credentials = not given.keys().isdisjoint(_CREDENTIALS)
    keys = Path(given.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials").expanduser()
    settings = Path(given.get("AWS_CONFIG_FILE") or f"{home}/.aws/config").expanduser()
    has_files = keys.is_file() or settings.is_file()
    if "AWS_SKIP_SIGNATURE" in given or not (profile or (has_files and not has_credentials)):
        return {}
    what = f"the AWS profile {profile!r}" if profile else f"{keys} and {settings} (AWS_PROFILE is not set)"
    if importlib.util.find_spec("boto3") is not None:
        return _boto3_options(what, profile, given)
    if has_credentials or not (profile or keys.is_file()):
        return {}
    raise StoreError(
        f"cannot read {what}: profiles of AWS need boto3, which is not installed; run `pip install boto3`, or set "
        f"{_KEYS} (`aws configure export-credentials --format env` prints them)"
    )


def _boto3_options(what: str, profile: str | None, given: Mapping[str, str]) -> dict[str, Any]:
    """Return obstore's options with the credentials, region and endpoint that boto3 finds; raises StoreError."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session(region_name=given.get("AWS_REGION"))  # boto3 itself reads AWS_DEFAULT_REGION
        provider = Boto3CredentialProvider(session)
        provider()  # an expired login shows itself here, and not in a survey's first request
        endpoint = session.client("s3").meta.endpoint_url
    except (BotoCoreError, ClientError, ValueError) as error:
        # obstore raises ValueError if boto3 finds no credentials.
        why = "it has no credentials" if isinstance(error, ValueError) else first_line(error)
        raise StoreError(
            f"{what} gives no credentials: {why}; {_selectable(profile)}log in (`aws sso login`), or set {_KEYS}"
        ) from error
    options: dict[str, Any] = {"credential_provider": provider}
    if given.keys().isdisjoint(_ENDPOINTS):
        options["config"] = {"endpoint": endpoint}
        if endpoint.startswith("http://"):
            options["client_options"] = {"allow_http": True}
    return options


def _selectable(profile: str | None) -> str:
    """Return the advice to select one of the existing profiles, unless the selected one exists."""
    import botocore.session

    names = botocore.session.Session().available_profiles
    if not names or profile in names:
        return ""
    return f"set AWS_PROFILE to one of {', '.join(names)}, "
