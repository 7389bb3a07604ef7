"""The image, the compose file and the manifests: well-formed, closed, and true to the broker."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has none
import pytest
import yaml  # type: ignore[import-untyped]  # its types are another package
from typer.main import get_command

import wirelake
from wirelake.cli import app
from wirelake.config import Listener, read_settings
from wirelake.testing import Broker

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SETTINGS = ROOT / "deploy" / "container.toml"
HEALTHY = ROOT / "deploy" / "healthy.py"
HADOLINT = Path(sys.executable).parent / "hadolint"


def manifests() -> list[dict[str, Any]]:
    """All manifests for Kubernetes."""
    files = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def compose() -> dict[str, Any]:
    """The compose file."""
    read: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return read


def instructions(name: str) -> list[str]:
    """The arguments of every instruction of this name in the Dockerfile."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.+)$", joined, re.MULTILINE)


def parses(words: list[str]) -> None:
    """Fail unless these are arguments that a command takes."""
    command: Any = get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context("command", list(words))


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is for Linux on x86-64 only")
def test_a_linter_finds_nothing_in_the_dockerfile(tmp_path: Path) -> None:
    done = subprocess.run([HADOLINT, "--no-color", ROOT / "Dockerfile"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE + "MAINTAINER me\n")
    assert subprocess.run([HADOLINT, tmp_path / "Dockerfile"], capture_output=True).returncode == 1


def test_the_build_context_has_what_the_dockerfile_copies_and_no_more() -> None:
    copied = {
        name
        for line in instructions("COPY")
        if not line.startswith("--from")
        for name in line.split()[:-1]
    }
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in kept if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_every_image_runs_as_somebody_without_rights_and_says_whether_it_is_healthy() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    images = [stage for stage in stages if "ENTRYPOINT" in stage]
    assert len(images) == 2
    for image in images:
        assert "USER 10001:10001\n" in image
        assert "HEALTHCHECK" in image
        assert "VOLUME /data\n" in image
    assert "HEALTHCHECK NONE" not in images[-1]  # the default one, the broker


def test_commands_of_images_and_services_are_ours() -> None:
    for line in instructions("CMD"):
        parses(json.loads(line))
    for service in compose()["services"].values():
        parses(service["command"])
    (container,) = stateful_set()["template"]["spec"]["containers"]
    parses(container["args"])


def test_an_image_without_tokens_refuses_to_be_reached() -> None:
    command = [sys.executable, "-m", "wirelake", "serve", "--config", str(SETTINGS), "--memory"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "can be reached from other machines and no tokens are configured" in done.stderr


def test_ports_are_those_of_the_settings() -> None:
    settings = read_settings(SETTINGS)
    ports = [Listener.parse(url).port for url in settings.listen]
    ports.append(int(settings.http.rpartition(":")[2]))
    assert [int(port) for port in instructions("EXPOSE")[0].split()] == ports
    published = compose()["services"]["broker"]["ports"]
    assert published == [f"127.0.0.1:{port}:{port}" for port in ports]
    (container,) = stateful_set()["template"]["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"]] == ports
    assert f":{ports[-1]}/" in HEALTHY.read_text()
    assert tomllib.loads(SETTINGS.read_text())["data"] == "/data"


def test_the_health_check_follows_the_broker(tmp_path: Path) -> None:
    def ask(url: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", HEALTHY, f"{url}/healthz"], capture_output=True, text=True
        )

    with Broker(http=True, data=tmp_path) as broker:
        url = broker.http_url
        asked = ask(url)
        assert (asked.returncode, json.loads(asked.stdout)["state"]) == (0, "ok")
    gone = ask(url)
    assert gone.returncode == 1
    assert "refused" in gone.stderr


def test_services_of_compose_have_a_root_that_is_read_only_and_no_capabilities() -> None:
    for service in compose()["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["build"]["target"] in re.findall(r"^FROM .* AS (.+)$", DOCKERFILE, re.M)


def test_the_compose_file_keeps_to_its_schema(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, ROOT / "compose.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / "compose.yaml").read_text().replace("command:", "colour:"))
    done = subprocess.run([*command, wrong], capture_output=True, text=True)
    assert done.returncode == 1
    assert "colour" in done.stdout


def stateful_set() -> dict[str, Any]:
    """What Kubernetes is told about the broker."""
    (spec,) = [one["spec"] for one in manifests() if one["kind"] == "StatefulSet"]
    found: dict[str, Any] = spec
    return found


@pytest.mark.parametrize("manifest", manifests(), ids=lambda one: one["kind"])
def test_kubernetes_takes_the_manifests(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.37", strict=True)
    manifest["spec"]["colour"] = "red"
    with pytest.raises(kubernetes_validate.ValidationError, match="colour"):
        kubernetes_validate.validate(manifest, "1.37", strict=True)


def test_the_manifests_have_probes_a_disruption_budget_and_a_closed_container() -> None:
    (container,) = stateful_set()["template"]["spec"]["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert stateful_set()["template"]["spec"]["securityContext"]["runAsUser"] == 10001
    (budget,) = [one for one in manifests() if one["kind"] == "PodDisruptionBudget"]
    labels = stateful_set()["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert container["image"] == f"wirelake:{wirelake.__version__}"
