"""URIs of buckets, with their credentials and addresses.  This makes no request.

s3://bucket/folder                                    s3a:// is the same gs://bucket/folder
abfss://container@account.dfs.core.windows.net/folder abfs:// is the same; without an account,
AZURE_STORAGE_ACCOUNT_NAME's
"""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millpond.errors import CheckpointError, library_missing

# As written -> canonical: a replica's folder depends on its checkpoint's canonical URI.
SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "abfs": "abfss", "abfss": "abfss"}
_PREFIXES = {"s3": ("AWS_",), "gs": ("GOOGLE_", "STORAGE_EMULATOR_HOST"), "abfss": ("AZURE_",)}
_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "abfss": "AzureStore"}
_CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, for a user who may list and get there.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to a key file of an account that may list and get there.",
    "abfss": "Set AZURE_STORAGE_ACCOUNT_KEY, or AZURE_CLIENT_ID with its secret, for an account that may list and read there.",
}
_ENDPOINTS = {
    "s3": "Check the network, AWS_ENDPOINT_URL and AWS_REGION; a follower tries again by itself.",
    "gs": "Check the network; a follower tries again by itself.",
    "abfss": "Check the network and the account's name; a follower tries again by itself.",
}
# A profile with one of these gets its credentials in ways that only the AWS SDK knows.
_NEEDS_SDK = ("role_arn", "sso_session", "sso_start_url", "credential_process", "login_session")

# Keys from a file are read again after this time, less the library's margin of five minutes.
_KEYS_KEPT = timedelta(minutes=10)


Provider = Callable[[], Any]
"""a function that the library calls for credentials"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket or container.

    scheme:  s3, gs or abfss
    host:    of an Azure account, empty otherwise
    """

    scheme: str
    name: str
    host: str = ""

    @property
    def uri(self) -> str:
        """The canonical URI, without a final slash."""
        return f"{self.scheme}://{self.name}" + (f"@{self.host}" if self.host else "")

    @property
    def store_class(self) -> str:
        """The library's class for it."""
        return _CLASSES[self.scheme]

    @property
    def credentials_hint(self) -> str:
        """What to do if it refuses us."""
        return _CREDENTIALS[self.scheme]

    @property
    def endpoint_hint(self) -> str:
        """What to do if it doesn't answer."""
        return _ENDPOINTS[self.scheme]

    def config(self, environment: Mapping[str, str]) -> tuple[dict[str, Any], Provider | None]:
        """The library's settings for it, and a provider of credentials if the library can't find them itself.

        The library reads the environment by itself: key variables, web identity, container and
        instance metadata.

        Raises:  LIBRARY_MISSING if a profile of ~/.aws needs the AWS SDK.
        """
        if self.scheme == "abfss":
            return ({"account_name": self.host.split(".")[0]} if self.host else {}), None
        return _aws(self.name, environment) if self.scheme == "s3" else (_google(environment), None)

    def is_plain_http(self, config: Mapping[str, Any]) -> bool:
        """Whether these settings name a server without TLS."""
        account = json.loads(config.get("service_account_key", "{}"))
        return str(config.get("endpoint") or account.get("gcs_base_url", "")).startswith("http://")


def parse_bucket_uri(uri: str) -> tuple[Bucket, str]:
    """The bucket, and the folder in it without slashes around it.

    Raises:  UNSUPPORTED if the URI names no bucket.
    """
    # Names of objects have no escapes, and may have ? and # in them.
    scheme, _, rest = uri.partition("://")
    place, _, folder = rest.partition("/")
    name, _, host = place.partition("@")
    if scheme not in SCHEMES or not name or (host and SCHEMES[scheme] != "abfss"):
        raise CheckpointError(
            "UNSUPPORTED",
            f"{uri!r} names no bucket.",
            hint="Write it like s3://bucket/folder, gs://bucket/folder or abfss://container@account.dfs.core.windows.net/folder.",
            uri=uri,
        )
    return Bucket(scheme=SCHEMES[scheme], name=name, host=host), "/".join(part for part in folder.split("/") if part)


def ambient(scheme: str) -> tuple[tuple[str, str], ...]:
    """The environment's variables for this kind of storage; other values give another connection."""
    wanted = (*_PREFIXES[scheme], "HOME")
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(wanted)))


def _aws(bucket: str, environment: Mapping[str, str]) -> tuple[dict[str, Any], Provider | None]:
    """Settings of S3: environment first, then the profile, as the AWS command line does."""
    profile = _profile(environment)
    config: dict[str, Any] = {}
    endpoint = next(
        (e for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if (e := environment.get(name))), None
    )
    endpoint = endpoint or profile.get("endpoint_url")
    if endpoint:
        config["endpoint"] = endpoint.rstrip("/")
        if environment.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1"):
            # For a server other than Amazon's, the library needs the whole name.
            config["endpoint"] = config["endpoint"].replace("://", f"://{bucket}.", 1)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or profile.get("region")
    if region:
        config["region"] = region
    if environment.get("AWS_ACCESS_KEY_ID") and not environment.get("AWS_PROFILE"):
        return config, None
    if "aws_access_key_id" in profile:
        return config, lambda: profile_credentials(environment)
    if any(name in profile for name in _NEEDS_SDK):
        return config, _sdk_provider(environment.get("AWS_PROFILE"))
    return config, None


def _google(environment: Mapping[str, str]) -> dict[str, Any]:
    """A server other than Google's, named as for Google's own clients; it needs no credentials."""
    host = environment.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    if not host:
        return {}
    url = host if "://" in host else f"http://{host}"
    # The library takes it only from a key file, which must have the other members too.
    account = {"gcs_base_url": url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {"service_account_key": json.dumps(account, separators=(",", ":"))}


def profile_credentials(environment: Mapping[str, str]) -> dict[str, Any]:
    """The profile's present keys: programs that fetch keys for about an hour write them into its file."""
    profile = _profile(environment)
    return {
        "access_key_id": profile.get("aws_access_key_id", ""),
        "secret_access_key": profile.get("aws_secret_access_key", ""),
        "token": profile.get("aws_session_token"),
        "expires_at": datetime.now(UTC) + _KEYS_KEPT,
    }


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    """The profile in ~/.aws/config and ~/.aws/credentials; if both have a value, the second counts."""
    name = environment.get("AWS_PROFILE") or "default"
    folder = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(environment.get(variable) or folder / file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found


def _sdk_provider(profile: str | None) -> Provider:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as missing:
        raise library_missing("boto3", "object-store,aws-profiles") from missing
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


def is_bucket_uri(text: str) -> bool:
    """Whether a path or URI lies on an object store."""
    return urlsplit(text).scheme in SCHEMES if "://" in text else False
