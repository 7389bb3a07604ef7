"""What all tests share: no limit on time, a brief Java, certificates for TLS made once a run."""

from __future__ import annotations

import signal
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from wirelake.config import TlsSettings

# A run in the background ignores interrupts, and one under nohup hangups, and so would every
# program that its tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine is no failure.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

#: Java for those who need it for seconds: compiled quickly rather than well.
BRIEF_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Certificates:
    """A folder with an authority, a server's certificate for localhost, and clients'."""

    folder: Path

    @property
    def tls(self) -> TlsSettings:
        """A server that asks nobody who they are."""
        return TlsSettings(cert=self._file("server.pem"), key=self._file("server.key"))

    def tls_for_clients(self, *, required: bool) -> TlsSettings:
        """A server that looks at the certificates of clients."""
        return TlsSettings(
            cert=self.tls.cert,
            key=self.tls.key,
            client_ca=self._file("ca.pem"),
            require_client_cert=required,
        )

    def client(self, name: str = "") -> ssl.SSLContext:
        """A client that trusts the authority, with the certificate of this name."""
        context = ssl.create_default_context(cafile=self._file("ca.pem"))
        if name:
            context.load_cert_chain(self._file(f"{name}.pem"), self._file(f"{name}.key"))
        return context

    def make(self, name: str, common_name: str) -> None:
        """A certificate of the authority."""
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
        subject = f"/CN={common_name}"
        request, key = self._file(f"{name}.csr"), self._file(f"{name}.key")
        _openssl("req", "-new", *KEY, "-keyout", key, "-out", request, "-subj", subject)
        authority = ("-CA", self._file("ca.pem"), "-CAkey", self._file("ca.key"))
        form = ("-CAcreateserial", "-days", "2", "-extfile", str(extensions))
        _openssl(
            "x509", "-req", "-in", request, *authority, *form, "-out", self._file(f"{name}.pem")
        )

    def _file(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="session", autouse=True)
def brief_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every Spark that a test starts, in this process or another, has a Java for seconds."""
    folder = tmp_path_factory.mktemp("spark")
    settings = f"spark.driver.extraJavaOptions {BRIEF_JAVA}\n"
    (folder / "spark-defaults.conf").write_text(settings, encoding="ascii")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(folder))
        yield


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A server's certificate, and those of the clients `alice` and `mallory`."""
    folder = tmp_path_factory.mktemp("certificates")
    made = Certificates(folder)
    key, certificate = str(folder / "ca.key"), str(folder / "ca.pem")
    _openssl(
        "req", "-x509", *KEY, "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=ca"
    )
    for name, common_name in [("server", "localhost"), ("alice", "alice"), ("mallory", "mallory")]:
        made.make(name, common_name)
    return made


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
