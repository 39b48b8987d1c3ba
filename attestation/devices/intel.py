"""Intel: appraisal of TDX and SGX quotes with Intel's signed TCB data.

Room: attestation (pure). `dcap-qvl`, the optional extra `attestation`, checks signatures, certificates
and revocation and matches TCB levels. Only its claims are used: every rule of the policy is
applied here, to fields that our own parser read and its claims confirm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from assay.attestation.certificates import read_certificate
from assay.attestation.devices.intel_quote import Quote, parse_quote
from assay.attestation.evidence import INTEL_COLLATERAL_BYTES_MAX, Collateral, Report
from assay.attestation.finding import Debug, DeviceFinding
from assay.attestation.policy import ADVISORIES_MAX, AppraisalPolicy, TcbStatus, match_reference, tcb_faults
from assay.attestation.reasons import Reason
from assay.protocol.encoding.json_text import parse_json
from assay.protocol.errors import ConfigError, MalformedMessage

CHAINS = ("pck_crl_issuer_chain", "tcb_info_issuer_chain", "qe_identity_issuer_chain")
TEXTS = (*CHAINS, "tcb_info", "qe_identity")
CLAIMS_VERSION = 1
HEX = ("root_ca_crl", "pck_crl", "tcb_info_signature", "qe_identity_signature")

# dcap-qvl raises ValueError with free text for everything it refuses. The tests cause each of
# these texts; any other text maps to NOT_ENDORSED, which refuses as well.
_REFUSALS = (
    ("in the future", Reason.COLLATERAL_IN_FUTURE),
    ("xpired", Reason.COLLATERAL_EXPIRED),
    ("No matching TCB level", Reason.TCB_UNKNOWN),
    ("TCB status is invalid", Reason.TCB_TOO_OLD),
    ("ignature is invalid", Reason.SIGNATURE),
    ("QE report hash mismatch", Reason.SIGNATURE),
    ("verify certificate chain", Reason.CHAIN),  # revoked ones too
)
_STATUS = {status.label: status for status in TcbStatus if status is not TcbStatus.NOT_STATED}


def examine(
    report: Report, expected: bytes, policy: AppraisalPolicy, collateral: Collateral, at_s: int
) -> DeviceFinding:
    """Appraise a quote.

    Args:
        report: Its certificates are inside the quote.
        expected: Expected report data, 64 bytes.
        policy: The appraisal policy.
        collateral: Intel's, complete; without it the only reason is NO_COLLATERAL.
        at_s: Unix time.

    Raises:
        MalformedMessage: the quote or the collateral is malformed.
        ConfigError: dcap-qvl is not installed.
    """
    quote = parse_quote(report.body)
    if quote.family is not report.family:
        raise MalformedMessage(f"quote: of {quote.family.label}, expected {report.family.label}")
    if report.certificates:
        return DeviceFinding(reasons=(Reason.CHAIN,))
    given = _read_collateral(collateral.intel)
    if given is None:
        return DeviceFinding(reasons=(Reason.NO_COLLATERAL,))
    root = read_certificate(quote.chain[-1])
    if root.sha256 not in policy.pinned(report.family):
        return DeviceFinding(reasons=(Reason.ROOT,))
    claims = _verified(report.body[: quote.end], given, root.der, at_s)
    if isinstance(claims, Reason):
        return DeviceFinding(reasons=(*_own_faults(quote), claims))
    _confirm(quote, claims)
    return _judge(quote, claims, given, expected, policy, at_s)


def _judge(
    quote: Quote,
    claims: Mapping[str, Any],
    given: Mapping[str, str],
    expected: bytes,
    policy: AppraisalPolicy,
    at_s: int,
) -> DeviceFinding:
    """Apply the policy's rules to a quote whose signatures are valid."""
    status = _STATUS.get(claims["tcb"]["status"], TcbStatus.NOT_STATED)
    advisories = tuple(sorted(claims["tcb"]["advisory_ids"]))
    if len(advisories) > ADVISORIES_MAX:
        raise MalformedMessage(
            f"Intel collateral: {len(advisories)} advisories, expected {ADVISORIES_MAX} at most"
        )
    pck = claims["platform"]["pck"]
    unmatched, until_s = match_reference(policy, quote.family, quote.claims, at_s)
    signed_s = min(_issued_s(given["tcb_info"]), _issued_s(given["qe_identity"]))
    evaluated = min(claims["tcb"]["eval_data_number"], claims["qe"]["tcb_eval_data_number"])
    is_refused = any(advisory in policy.refused_advisories for advisory in advisories)
    faults = {
        Reason.BINDING: quote.report_data != expected,
        Reason.COLLATERAL_TOO_OLD: at_s - signed_s > policy.collateral_age_max_s,
        Reason.TCB_DATA_TOO_OLD: evaluated < policy.tcb_evaluation_min,
        Reason.ADVISORY_REFUSED: is_refused,
        Reason.ADVISORIES: bool(advisories) and not is_refused,
        Reason.PLATFORM: (pck["smt_enabled"] == "True" and not policy.is_smt_allowed)
        or (pck["dynamic_platform"] == "True" and not policy.is_dynamic_platform_allowed)
        or (pck["cached_keys"] == "True" and not policy.are_cached_keys_allowed),
    }
    ends = (claims["earliest_expiration_date"], claims["qe_iden_earliest_expiration_date"])
    return DeviceFinding(
        reasons=(
            *_own_faults(quote),
            *(r for r, holds in faults.items() if holds),
            *tcb_faults(policy, status),
            *unmatched,
        ),
        device=bytes(pck["ppid"]),
        claims=quote.claims,
        debug=Debug.ENABLED if quote.is_debug else Debug.DISABLED,
        tcb=status,
        advisories=advisories,
        not_after_s=min(until_s, *ends),
    )


def _own_faults(quote: Quote) -> tuple[Reason, ...]:
    """Reasons in the quote's own fields. dcap-qvl refuses these too; here each gets its code."""
    faults = {
        Reason.DEBUG: quote.is_debug,
        Reason.MIGRATION: quote.is_migratable,
        Reason.MODULE: not quote.is_own_module,
    }
    return tuple(reason for reason, holds in faults.items() if holds)


def _verified(quote: bytes, given: Mapping[str, str], root_der: bytes, at_s: int) -> dict[str, Any] | Reason:
    """dcap-qvl's claims about a quote whose signatures are valid at `at_s`, or the reason for none."""
    try:
        import dcap_qvl
    except ImportError:
        raise ConfigError(
            "appraising Intel quotes needs dcap-qvl; please run:  pip install 'assay[attestation]'"
        ) from None
    try:
        collateral = dcap_qvl.QuoteCollateralV3(
            **{name: given[name] for name in TEXTS}, **{name: bytes.fromhex(given[name]) for name in HEX}
        )
        verifier = dcap_qvl.QuoteVerifier(root_der)
        policy = dcap_qvl.QuotePolicy.claims_only(at_s)
        claims_json = verifier.verify_with_policy(quote, collateral, at_s, policy).to_json()
    except (ValueError, OverflowError) as refusal:
        return reason_of(str(refusal))
    except BaseException as panic:
        # A panic in the extension's Rust raises pyo3's PanicException, which is no Exception and
        # cannot be imported. Its message is on standard error; the quote is refused.
        if type(panic).__name__ == "PanicException":
            return Reason.NOT_ENDORSED
        raise
    claims: dict[str, Any] = json.loads(claims_json)
    if claims.get("claims_version") != CLAIMS_VERSION:
        raise ConfigError(f"dcap-qvl's claims are of version {claims.get('claims_version')}, expected 1")
    return claims


def reason_of(text: str) -> Reason:
    """The code for dcap-qvl's refusal text; NOT_ENDORSED for an unknown text."""
    return next((reason for part, reason in _REFUSALS if part in text), Reason.NOT_ENDORSED)


def _confirm(quote: Quote, claims: Mapping[str, Any]) -> None:
    """Do nothing if both parsers read the same report.

    Raises:
        MalformedMessage: they disagree, so one of them misread the quote.
    """
    (report,) = claims["report"].values()
    report |= report.get("base", {})
    names = {"rtmr0": "rt_mr0", "rtmr1": "rt_mr1", "rtmr2": "rt_mr2", "rtmr3": "rt_mr3"}
    expected = {"report_data": quote.report_data.hex()}
    expected |= {names.get(name, name): value for name, value in quote.claims.items() if len(value) >= 64}
    for name, value in expected.items():
        if report.get(name) != value:
            raise MalformedMessage(f"quote: dcap-qvl reads {name} as {report.get(name)}, expected {value}")


def _read_collateral(body: bytes) -> dict[str, str] | None:
    """Intel's collateral by name; None if it is missing or incomplete.

    Raises:
        MalformedMessage: it is not a JSON object of texts.
    """
    if not body:
        return None
    if len(body) > INTEL_COLLATERAL_BYTES_MAX:
        raise MalformedMessage(
            f"Intel collateral: {len(body)} bytes, at most {INTEL_COLLATERAL_BYTES_MAX} expected"
        )
    try:
        found = parse_json(body)
    except (ValueError, RecursionError) as cause:
        raise MalformedMessage(f"Intel collateral: is not JSON ({cause})") from None
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise MalformedMessage("Intel collateral: expected an object of texts")
    unknown = set(found) - {*TEXTS, *HEX}
    if unknown:
        raise MalformedMessage(f"Intel collateral: unknown {', '.join(sorted(unknown))[:200]}")
    for name in HEX:
        try:
            bytes.fromhex(found.get(name, ""))
        except ValueError:
            raise MalformedMessage(f"Intel collateral: {name} is not hexadecimal") from None
    return found if all(found.get(name) for name in (*TEXTS, *HEX)) else None


def _issued_s(text: str) -> int:
    """Unix time at which Intel issued one of its signed JSON texts.

    Raises:
        MalformedMessage: the text, whose signature is valid, has no such time.
    """
    try:
        found = parse_json(text)["issueDate"]
        return int(datetime.strptime(found, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp())
    except (ValueError, TypeError, KeyError) as cause:
        raise MalformedMessage(f"Intel collateral: no issueDate ({cause})") from None
