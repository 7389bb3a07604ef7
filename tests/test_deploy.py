"""The image, the compose file and the manifests: well-formed, closed, and true to the broker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # it has none
import pytest
import yaml  # type: ignore[import-untyped]  # its types are another package
from typer.main import get_command

import wirelake
from tests.cluster.servers import binary
from wirelake.cli import app
from wirelake.config import Listener, read_settings
from wirelake.testing import Broker

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
SETTINGS = ROOT / "deploy" / "container.toml"
HEALTHY = ROOT / "deploy" / "healthy.py"
CLUSTER = "compose.cluster.yaml"
HADOLINT = Path(sys.executable).parent / "hadolint"


def manifests() -> list[dict[str, Any]]:
    """All manifests for Kubernetes."""
    files = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """A compose file."""
    read: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return read


COMPOSE = ("compose.yaml", CLUSTER)


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
    for file in COMPOSE:
        for service in compose(file)["services"].values():
            if "entrypoint" not in service:
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


@pytest.mark.parametrize("file", COMPOSE)
def test_services_have_a_root_that_is_read_only_and_no_capabilities(file: str) -> None:
    for service in compose(file)["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["build"]["target"] in re.findall(r"^FROM .* AS (.+)$", DOCKERFILE, re.M)


@pytest.mark.parametrize("file", COMPOSE)
def test_a_compose_file_keeps_to_its_schema(file: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, ROOT / file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / file).read_text().replace("command:", "colour:"))
    done = subprocess.run([*command, wrong], capture_output=True, text=True)
    assert done.returncode == 1
    assert "colour" in done.stdout


def test_the_services_of_the_cluster_are_one_cluster(tmp_path: Path) -> None:
    """Each service as a process: its own command and settings, with an address for its host."""
    if binary() is None:
        pytest.skip("nats-server is not installed")
    services = compose(CLUSTER)["services"]
    hosts = {name: f"127.9.{n}.1" for n, name in enumerate(services)}
    servers = [name for name in services if "entrypoint" in services[name]]
    nodes = [name for name in services if name not in servers]
    assert all(set(services[name]["depends_on"]) == set(servers) for name in nodes)
    with ExitStack() as stack:
        for group in (servers, nodes):
            for name in group:
                command = local(name, services[name], hosts, tmp_path)
                environment = {**os.environ, **services[name].get("environment", {})}
                log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
                process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
                stack.callback(process.wait, 60)
                stack.callback(process.terminate)
            for name in group:
                check = services[name].get("healthcheck", {"test": [health_of_the_image()]})
                url = check["test"][-1].replace("127.0.0.1", hosts[name])
                wait_for([sys.executable, HEALTHY, url])
        program = [sys.executable, "-m", "wirelake"]
        status = [*program, "cluster", "status", "--cluster", f"nats://{hosts['nats-2']}:4222"]
        told = json.loads(subprocess.check_output([*status, "--json"]))
        assert sorted(one["node"] for one in told["nodes"]) == ["node-1", "node-2", "node-3"]
        wait_for([*program, "kv", "put", f"kobold-3://{hosts['node-1']}:7700", "lamp", "on"])
        read = [*program, "kv", "get", f"kobold-3://{hosts['node-3']}:7700", "lamp"]
        assert subprocess.check_output(read).strip() == b"on"


def local(name: str, service: dict[str, Any], hosts: dict[str, str], folder: Path) -> list[str]:
    """The command of a service, with its files where this machine has them."""
    places = {"/data": str(folder / name)}
    for one in service["volumes"]:
        source, _, rest = one.partition(":")
        if source.startswith("./"):
            text = (ROOT / source).read_text().replace("0.0.0.0", hosts[name])
            for host, address in hosts.items():
                text = text.replace(f"//{host}:", f"//{address}:")
            copy = folder / f"{name}-{Path(source).name}"
            copy.write_text(text.replace('"/data"', json.dumps(places["/data"])))
            places[rest.partition(":")[0]] = str(copy)
    program = service.get("entrypoint", [sys.executable, "-m", "wirelake"])
    program = [str(binary()) if word == "nats-server" else word for word in program]
    return program + [places.get(word, word) for word in service["command"]]


def health_of_the_image() -> str:
    """The page that its health check asks for."""
    (url,) = re.findall(r'"(http://.+)"', HEALTHY.read_text())
    return str(url)


def wait_for(command: list[Any]) -> None:
    """Run a command until it succeeds."""
    ends = time.monotonic() + 120
    while (done := subprocess.run(command, capture_output=True, text=True)).returncode:
        assert time.monotonic() < ends, done.stderr
        time.sleep(0.2)


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
