"""Attestation commands: appraise a node's hardware evidence, for anybody who has the files.

Room: cli (edge: reads files). A command parses, calls one library function, prints one result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from assay.cli.result import AsJson
from assay.orders.config_errors import one_line
from assay.orders.toml import read_toml
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError
from assay.protocol.types import Digest, PeerId

if TYPE_CHECKING:
    from assay.attestation.result import AttestationResult, DeviceResult

FILE_BYTES_MAX = 4 << 20

attest_app = typer.Typer(no_args_is_help=True, help="Appraise hardware attestation evidence.")


@attest_app.callback()
def attest() -> None:
    """Appraise hardware attestation evidence."""


@attest_app.command("appraise")
def attest_appraise(
    evidence: Annotated[
        Path, typer.Argument(metavar="EVIDENCE.json", help="Evidence; format: attestation/files.py.")
    ],
    policy: Annotated[
        Path, typer.Option(help="Appraisal policy, TOML or JSON; example: examples/attestation/policy.toml.")
    ],
    collateral: Annotated[Path, typer.Option(help="Vendor collateral, JSON; format: attestation/files.py.")],
    at: Annotated[str, typer.Option(help="Time of the appraisal, such as 2026-11-20T00:00:00Z.")],
    binding_deployment: Annotated[str, typer.Option(metavar="HEX", help="The deployment's id.")],
    binding_node: Annotated[str, typer.Option(metavar="HEX", help="The node's peer key.")],
    binding_run: Annotated[str, typer.Option(metavar="HEX", help="The run's id.")],
    binding_epoch: Annotated[int, typer.Option(min=0, help="The epoch's number.")],
    binding_code: Annotated[str, typer.Option(metavar="HEX", help="SHA-256 of what the guest runs.")],
    binding_nonce: Annotated[str, typer.Option(metavar="HEX", help="The verifiers' nonce.")],
    binding_nonce_at: Annotated[str, typer.Option(help="Time at which the nonce was drawn.")],
    as_json: AsJson = False,
) -> None:
    """Appraise a node's evidence by a policy; exit status 1 if the verdict is not "affirming".

    Example: assay attest appraise evidence.json --policy policy.toml --collateral collateral.json
    --at 2026-11-20T00:00:00Z --binding-deployment HEX --binding-node HEX --binding-run HEX
    --binding-epoch 3 --binding-code HEX --binding-nonce HEX --binding-nonce-at 2026-11-19T23:59:00Z
    """
    from assay.attestation.appraisal import appraise
    from assay.attestation.binding import Binding
    from assay.attestation.files import read_collateral, read_evidence
    from assay.attestation.policy_file import policy_of
    from assay.attestation.reasons import TrustTier
    from assay.attestation.result import as_eat

    binding = Binding(
        deployment_id=Digest(_digest(binding_deployment, "deployment")),
        node=PeerId(_digest(binding_node, "node")),
        run_id=Digest(_digest(binding_run, "run")),
        epoch=binding_epoch,
        code_digest=Digest(_digest(binding_code, "code")),
        nonce=Digest(_digest(binding_nonce, "nonce")),
        nonce_at_s=_moment(binding_nonce_at, "--binding-nonce-at"),
    )
    result = appraise(
        read_evidence(_read(evidence)),
        binding,
        policy_of(_tables(policy), str(policy)),
        read_collateral(_read(collateral)),
        _moment(at, "--at"),
    )
    if as_json:
        typer.echo(json.dumps(as_eat(result), indent=2))
    else:
        typer.echo("\n".join(result_lines(result)))
    raise typer.Exit(0 if result.verdict is TrustTier.AFFIRMING else 1)


def result_lines(result: AttestationResult) -> list[str]:
    """A result for people: verdict, reasons, devices, digests, and until when."""
    reasons = [reason.label for reason in result.all_reasons]
    lines = [f"verdict     {result.verdict.label}", f"reasons     {', '.join(reasons) or '-'}"]
    lines += [_device_line("processor" if not index else f"gpu {index - 1}", device)
              for index, device in enumerate((result.main, *result.gpus))]  # fmt: skip
    lines += [
        f"evidence    {result.evidence.hex()}",
        f"collateral  {result.collateral.hex()}",
        f"policy      {result.policy.hex()}",
        f"valid for   {result.expires_s - result.at_s} s",
    ]
    return lines


def _device_line(what: str, device: DeviceResult) -> str:
    findings = f"{device.family.label} {device.verdict.label}, TCB {device.tcb.label}"
    advisories = f", advisories {' '.join(device.advisories)}" if device.advisories else ""
    return one_line(f"{what:<11} {findings}{advisories}")


def _tables(path: Path) -> dict[str, Any]:
    if path.suffix != ".json":
        return read_toml(path)
    try:
        found = parse_json(_read(path))
    except (ValueError, RecursionError) as cause:
        raise ConfigError(f"{path}: is not JSON: {cause}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return found


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise ConfigError(f"{path}: cannot be read ({cause.strerror or cause})") from None
    if len(body) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: more than {FILE_BYTES_MAX} bytes")
    return body


def _digest(text: str, what: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ConfigError(f"--binding-{what} is {one_line(text)[:80]!r}, expected 64 hexadecimal digits")
    return raw


def _moment(text: str, option: str) -> int:
    from assay.attestation.files import read_time

    try:
        return read_time(text)
    except ValueError:
        raise ConfigError(
            f"{option} is {one_line(text)[:40]!r}, expected the form 2026-11-20T00:00:00Z"
        ) from None
