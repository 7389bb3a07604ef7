"""Where a table is: a folder of this machine, or a place in an object store.

Both libraries that touch a table, pyarrow for its files and delta-rs for its commits, are given the
same options. They have the names that delta-rs knows (`AWS_REGION`, `AWS_ENDPOINT_URL`, …), in
capitals or not; what is not given is taken from the environment, as the clouds' own tools do it.
An option that only delta-rs would understand is refused: files and commits would go different ways.

An executor gets a `Storage` with its task, so it is a plain value that can be pickled.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from wirelake.errors import ConfigError, EngineError

#: Schemes of object stores.
SCHEMES = ("s3", "gs", "abfss")
#: What options of a store begin with.
PREFIXES = ("AWS_", "GOOGLE_", "AZURE_")
#: The options of these stores that both libraries understand.
GOOGLE = (
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_BASE_URL",
    "GOOGLE_SKIP_SIGNATURE",
)  # fmt: skip
AZURE = (
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
)  # fmt: skip
#: A request to Google's store is repeated at most this long; by itself pyarrow takes 15 minutes.
RETRIES = timedelta(seconds=60)

#: What a file of a table is called while it is written (`files`): hidden, so that nobody reads it.
_DRAFT = re.compile(r"\..+\.parquet\.[0-9a-f]{8}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


@dataclass(frozen=True)
class Storage:
    """A place for a table, and how its store is reached."""

    uri: str  # an absolute path, or scheme://bucket/path
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # may have secrets

    @classmethod
    def of(cls, place: str, options: Mapping[str, str] | None = None) -> Storage:
        """The place that a user has named; raises ConfigError where it cannot be one."""
        given = {name.upper(): value for name, value in (options or {}).items()}
        for name in given:
            if not name.startswith(PREFIXES):
                text = f"{name} is no option of a store; they begin with {', '.join(PREFIXES)}"
                raise ConfigError("--storage", text)
        scheme = _SCHEME.match(place)
        if scheme is None:
            return cls(str(Path(place).absolute()), given)
        if scheme[1].lower() == "file":
            return cls(unquote(urlsplit(place).path).rstrip("/") or "/", given)
        if scheme[1].lower() not in SCHEMES:
            known = ", ".join(f"{one}://" for one in SCHEMES)
            raise ConfigError("--table", f"{place}: a table is a folder, or in {known}")
        return cls(place.rstrip("/"), given)

    @property
    def is_local(self) -> bool:
        """Is it a folder of this machine?"""
        return _SCHEME.match(self.uri) is None

    def beside(self, suffix: str) -> Storage:
        """The place next to this one whose name has a suffix."""
        return Storage(self.uri + suffix, self.options)

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path of the place in it."""
        if self.is_local:
            return fs.LocalFileSystem(), self.uri
        parts = urlsplit(self.uri)
        match parts.scheme:
            case "s3":
                return fs.S3FileSystem(**self._s3()), f"{parts.netloc}{parts.path}"
            case "gs":
                return fs.GcsFileSystem(**self._google()), f"{parts.netloc}{parts.path}"
        container, _, host = parts.netloc.partition("@")
        return fs.AzureFileSystem(**self._azure(host)), f"{container}{parts.path}"

    @property
    def for_delta(self) -> dict[str, str]:
        """The options for delta-rs."""
        given = dict(self.options)
        endpoints = (self._get("AWS_ENDPOINT_URL"), self._google_endpoint, self._azure_endpoint)
        if any(one.startswith("http://") for one in endpoints):
            given.setdefault("ALLOW_HTTP", "true")
        return given

    def _get(self, *names: str) -> str:
        """The first of some options that is given, here or in the environment."""
        found = (self.options.get(name) or os.environ.get(name) for name in names)
        return next((one for one in found if one), "")

    def _s3(self) -> dict[str, Any]:
        wanted = {
            "access_key": self._get("AWS_ACCESS_KEY_ID"),
            "secret_key": self._get("AWS_SECRET_ACCESS_KEY"),
            "session_token": self._get("AWS_SESSION_TOKEN"),
            "region": self._get("AWS_REGION", "AWS_DEFAULT_REGION"),
        }
        if endpoint := self._get("AWS_ENDPOINT_URL"):
            parts = urlsplit(endpoint)
            wanted |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        return {name: value for name, value in wanted.items() if value}

    @property
    def _google_endpoint(self) -> str:
        return self._get("GOOGLE_BASE_URL")

    def _google(self) -> dict[str, Any]:
        self._only("GOOGLE_", GOOGLE)
        wanted: dict[str, Any] = {"retry_time_limit": RETRIES}
        if self._get("GOOGLE_SKIP_SIGNATURE").lower() == "true":
            wanted["anonymous"] = True
        elif file := self._get("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"):
            # Google's library takes the file from the environment alone, under one name.
            known = os.environ.setdefault("GOOGLE_APPLICATION_CREDENTIALS", file)
            if known != file:
                text = f"the environment of this process has another file, {known}"
                raise ConfigError("GOOGLE_APPLICATION_CREDENTIALS", text)
        if endpoint := self._google_endpoint:
            parts = urlsplit(endpoint)
            wanted |= {"endpoint_override": parts.netloc, "scheme": parts.scheme}
        return wanted

    @property
    def _azure_endpoint(self) -> str:
        return self._get("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

    def _azure(self, host: str) -> dict[str, Any]:
        self._only("AZURE_", AZURE)
        account = self._get("AZURE_STORAGE_ACCOUNT_NAME") or host.partition(".")[0]
        if not account:
            text = "it is not given, and the table is not of the form abfss://container@account.…"
            raise ConfigError("AZURE_STORAGE_ACCOUNT_NAME", text)
        wanted = {
            "account_name": account,
            "account_key": self._get("AZURE_STORAGE_ACCOUNT_KEY"),
            "sas_token": self._get("AZURE_STORAGE_SAS_TOKEN"),
            "tenant_id": self._get("AZURE_TENANT_ID"),
            "client_id": self._get("AZURE_CLIENT_ID"),
            "client_secret": self._get("AZURE_CLIENT_SECRET"),
        }
        if not (wanted["tenant_id"] and wanted["client_secret"]):
            del wanted["tenant_id"], wanted["client_secret"]
        if endpoint := self._azure_endpoint:
            # delta-rs wants the account in the path of an emulator's URL, pyarrow adds it itself.
            parts = urlsplit(endpoint)
            for service in ("blob", "dfs"):
                wanted[f"{service}_storage_authority"] = parts.netloc
                wanted[f"{service}_storage_scheme"] = parts.scheme
        return {name: value for name, value in wanted.items() if value}

    def _only(self, prefix: str, known: tuple[str, ...]) -> None:
        """Refuse options of a store that pyarrow could not be given."""
        for name in self.options:
            if name.startswith(prefix) and name not in known:
                text = f"{name} cannot be taken; for this store there are {', '.join(known)}"
                raise ConfigError("--storage", text)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file that is there as a whole, or not at all."""
        system, path = self.open()
        with _store_errors(self.uri):
            if self.is_local:
                target = Path(path, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                draft = target.with_name(f".{target.name}.{os.getpid()}")
                with draft.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(target)
                return
            with system.open_output_stream(f"{path}/{name}") as stream:
                stream.write(data)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        system, path = self.open()
        with _store_errors(self.uri):
            if system.get_file_info(f"{path}/{name}").type != fs.FileType.File:
                return None
            with system.open_input_file(f"{path}/{name}") as file:
                data: bytes = file.read()
                return data

    def files(self, ending: str = ".parquet") -> list[str]:
        """The paths of the files in it that readers see, from the place itself on."""
        system, path = self.open()
        with _store_errors(self.uri):
            found = system.get_file_info(
                fs.FileSelector(path, allow_not_found=True, recursive=True)
            )
        names = [one.path[len(path) :].lstrip("/") for one in found if one.is_file]
        return sorted(
            name
            for name in names
            if name.endswith(ending) and not any(p.startswith(("_", ".")) for p in name.split("/"))
        )

    def drafts(self, seconds: float) -> list[str]:
        """Files that a writer which died has not finished, none younger than this.

        An object store has none: what was not finished there is no object.
        """
        if not self.is_local:
            return []
        found = []
        for path in Path(self.uri).rglob(".*"):
            if not _DRAFT.fullmatch(path.name):
                continue
            with suppress(FileNotFoundError):  # it is finished by now
                if path.stat().st_mtime <= time.time() - seconds:
                    found.append(str(path.relative_to(self.uri)))
        return sorted(found)

    def delete(self, name: str) -> None:
        """Delete a file."""
        system, path = self.open()
        with _store_errors(self.uri):
            system.delete_file(f"{path}/{name}")


def draft_of(path: Path) -> Path:
    """What a file is called while it is written: a name that no other writer has."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")


class _store_errors:  # noqa: N801 - used as a statement
    """Lets what a store raises be an `EngineError`."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | pa.ArrowException):
            raise EngineError(f"{self._uri}: {error}") from error
