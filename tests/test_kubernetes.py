"""Kubernetes: manifests fit its schemas, run one process without rights, and never two with the same keys.

No cluster runs them here. `make lint-containers` installs the schemas in an environment of their own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
OWN = ROOT / "build" / "kubernetes" / "bin" / "kubernetes-validate"
ROLES = ("node", "verifier")


def resources(file: Path) -> dict[str, Any]:
    """The file's resources by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all(file.read_text())}


def pods() -> dict[str, Any]:
    """The specification of every pod, by file."""
    found = {}
    for file in FILES:
        kinds = resources(file)
        whole = kinds.get("StatefulSet")
        found[file.stem] = kinds["Pod"]["spec"] if whole is None else whole["spec"]["template"]["spec"]
    return found


def test_every_manifest_fits_the_schemas() -> None:
    validate = str(OWN) if OWN.exists() else shutil.which("kubernetes-validate")
    if validate is None:
        pytest.skip("needs kubernetes-validate: run 'make lint-containers'")

    done = subprocess.run(
        [validate, "--strict", "--quiet", *FILES], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_there_is_a_manifest_for_each_role_and_one_to_join_by() -> None:
    assert {file.stem for file in FILES} == {*ROLES, "setup"}


def test_no_pod_has_rights_and_all_are_the_images_user() -> None:
    image = (ROOT / "deploy" / "container" / "Containerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):\d+$", image, re.MULTILINE)
    for name, pod in pods().items():
        whole = pod["securityContext"]
        assert whole["runAsNonRoot"] and pod["automountServiceAccountToken"] is False, name
        assert {whole["runAsUser"], whole["runAsGroup"], whole["fsGroup"]} == {int(user)}, name
        assert whole["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["resources"]["limits"]["memory"], name


@pytest.mark.parametrize("role", ROLES)
def test_no_two_processes_can_have_the_same_keys(role: str) -> None:
    found = resources(FOLDER / f"{role}.yaml")

    assert found["StatefulSet"]["spec"]["replicas"] == 1
    assert found["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    claim = found["PersistentVolumeClaim"]["metadata"]["name"]
    (state,) = (one for one in pods()[role]["volumes"] if "persistentVolumeClaim" in one)
    assert state["persistentVolumeClaim"]["claimName"] == claim
    assert pods()[role]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"  # keys stay 0600


@pytest.mark.parametrize("role", ROLES)
def test_peers_reach_the_process_and_nobody_else_does(role: str) -> None:
    found = resources(FOLDER / f"{role}.yaml")
    (container,) = pods()[role]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    labels = found["StatefulSet"]["spec"]["template"]["metadata"]["labels"]

    (open_port,) = found["Service"]["spec"]["ports"]
    assert (open_port["port"], open_port["targetPort"]) == (ports["peers"], "peers")
    assert found["Service"]["spec"]["selector"] == labels
    policy = found["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels and policy["policyTypes"] == ["Ingress"]
    anybody = [one for one in policy["ingress"] if "from" not in one]
    assert [port["port"] for one in anybody for port in one["ports"]] == ["peers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}


@pytest.mark.parametrize("role", ROLES)
def test_each_process_is_started_as_the_command_line_has_it(role: str) -> None:
    from typer.testing import CliRunner

    from assay.cli.main import app

    (container,) = pods()[role]["containers"]
    said = CliRunner().invoke(app, [*container["args"][:2], "--help"])

    assert (said.exit_code, container["args"]) == (0, [role, "run", "config.toml"]), said.output
