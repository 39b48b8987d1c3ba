"""Appraiser: one verifier's appraisals of the hardware attestation evidence that nodes submit.

Room: verifier (edge: the clock, one file of collateral). The nonce is the digest of a final manifest, which
nobody knew before; the time at which it became final here dates the evidence. The appraisal goes to all
verifiers, and counts once a manifest carries a quorum of them.

A device speaks for one node at a time: else an owner of many nodes would need one. Its id comes from a
verified report that binds the node, so nobody can use up another's.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

import trio

from assay.attestation.appraisal import appraise
from assay.attestation.binding import Binding
from assay.attestation.evidence import Collateral, Evidence
from assay.attestation.files import FILE_BYTES_MAX, read_collateral
from assay.attestation.policy import AppraisalPolicy, check_policy
from assay.attestation.rate import discount_of
from assay.attestation.reasons import Reason
from assay.attestation.result import AttestationResult, read_token, refused, write_token
from assay.participant.config import Participant
from assay.participant.follower import Follower
from assay.protocol.encoding.codec import decode, digest
from assay.protocol.errors import ConfigError, MalformedMessage, OutOfPhase, PeerFault, Unavailable
from assay.protocol.identity import sign
from assay.protocol.messages import (
    EVIDENCE_BYTES_MAX,
    Appraisal,
    Discount,
    EvidenceSubmission,
    SignedAppraisal,
)
from assay.protocol.params import RunSpec
from assay.protocol.permitted import may_appraise
from assay.protocol.types import NO_DIGEST, Digest, PeerId

log = logging.getLogger(__name__)
POLICY = "attestation.cbor"  # the policy that a run names, as every verifier receives it
POLICY_BYTES_MAX = 1 << 20
KEPT = "attestation/"  # node "/" round: keys of the store's results
RESULTS_KEPT = 4  # of one node's; two count at a time, and each may have 130 KiB


def agreed_policy(spec: RunSpec, path: Path | None) -> AppraisalPolicy | None:
    """The attestation policy that the run names; None if it names none.

    Raises:
        ConfigError: it is not in the file.
    """
    if spec.audit.attestation == NO_DIGEST:
        return None
    if path is None:
        raise ConfigError("this run names a policy for attestation; set `attestation` to its file")
    try:
        policy = decode(AppraisalPolicy, path.read_bytes(), POLICY_BYTES_MAX)
        check_policy(policy)
    except (OSError, MalformedMessage, ValueError) as error:
        raise ConfigError(f"attestation {path}: {error}") from None
    if digest(policy) != spec.audit.attestation:
        raise ConfigError(f"attestation {path}: is not the policy that the run names")
    return policy


class Appraiser:
    """Answers nodes that submit evidence, for one verifier."""

    def __init__(
        self,
        me: Participant,
        follower: Follower,
        broadcast: Callable[[SignedAppraisal], Awaitable[None]],
        unix_s: Callable[[], int],
        in_thread: Callable[..., Awaitable[AttestationResult]],
    ) -> None:
        """Does nothing before `run`.

        Args:
            me: The verifier.
            follower: Its chain.
            broadcast: Passes our appraisal to the round and to all verifiers.
            unix_s: The clock, Unix seconds.
            in_thread: As `Host.in_thread`.

        Raises:
            ConfigError: see `agreed_policy`.
        """
        self._me, self._follower, self._broadcast, self._unix_s = me, follower, broadcast, unix_s
        self._in_thread = in_thread
        self._submitting = WeakValueDictionary[PeerId, trio.Lock]()  # by node, while it submits
        self._accepted: dict[PeerId, tuple[Digest, bytes]] = {}  # each node's last submission, our answer
        self._policy = agreed_policy(me.spec, me.config.attestation)
        self._nonces: dict[int, tuple[Digest, int]] = {}  # round -> digest of its manifest, final since
        self._devices: dict[Digest, tuple[PeerId, int]] = {}  # for which node, by the newest nonce's round
        for name, token in me.store.values(KEPT).items():
            try:
                result = read_token(token, me.me, me.domain)
            except (MalformedMessage, PeerFault) as error:
                log.warning("a kept result cannot be read", extra={"key": name, "reason": str(error)})
            else:
                self._bind(result, int(name.rpartition("/")[2]))

    async def run(self) -> None:
        """Record when manifests become final; ends only by cancellation."""
        while True:
            self.remember()
            await self._follower.grown(int(self._follower.run_state.round))

    def remember(self) -> None:
        """Record now as the time of the newest final manifest: its digest may be a nonce."""
        run_state, life = self._follower.run_state, self._me.spec.audit.attested_rounds
        if int(run_state.round):
            self._nonces.setdefault(int(run_state.round) - 1, (run_state.parent, self._unix_s()))
        self._nonces = {r: nonce for r, nonce in self._nonces.items() if run_state.round <= r + 1 + life}

    async def answer(self, peer: PeerId, body: bytes) -> bytes:
        """Handler of `attest`: evidence in, our signed result out, whatever it is worth.

        Raises:
            PeerFault: the peer is no node of this run.
            MalformedMessage: this is no evidence.
            Unavailable: the run accepts no evidence, or its nonce is not known here.
            OutOfPhase: the nonce is too old, or a manifest has our appraisal of other evidence for it.
        """
        policy = self._policy
        if policy is None:
            raise Unavailable("this run names no policy for attestation")
        if peer not in self._follower.run_state.nodes:
            raise PeerFault(peer, "shows evidence and is no node of this run")
        shown = decode(EvidenceSubmission, body)
        evidence = decode(Evidence, shown.evidence, EVIDENCE_BYTES_MAX)
        async with self._submitting.setdefault(peer, trio.Lock()):
            submission, token = self._accepted.get(peer, (NO_DIGEST, b""))
            if submission != digest(shown):
                token = await self._answer(policy, peer, shown, evidence)
            return token

    async def _answer(
        self, policy: AppraisalPolicy, peer: PeerId, shown: EvidenceSubmission, evidence: Evidence
    ) -> bytes:
        appraisal = Appraisal(
            run_id=self._me.run_id,
            round=shown.round,
            node=peer,
            verifier=self._follower.run_state.seat_of(self._me.me),
            discount=Discount.NONE,
            evidence=NO_DIGEST,
            result=NO_DIGEST,
        )
        if not may_appraise(
            self._follower.run_state, appraisal
        ):  # before any work for an unauthorised request
            raise OutOfPhase(peer, f"shows evidence over the manifest of round {shown.round}")
        result = await self._in_thread(peer, self._appraised, policy, peer, shown, evidence)
        if discount_of(result, result.at_s) is not Discount.NONE and self._is_taken(result):
            result = refused(result, Reason.DUPLICATE_DEVICE)
        fields = {
            "node": peer.hex()[:8],
            "verdict": result.verdict.label,
            "reasons": [reason.label for reason in result.all_reasons],
        }
        log.info("evidence appraised", extra=fields)
        token = write_token(result, self._me.keys.peer).encode()
        discount = discount_of(result, result.at_s)
        if discount is not Discount.NONE:
            appraisal = replace(appraisal, discount=discount, evidence=result.evidence, result=digest(result))
            self._bind(result, int(shown.round))
            self._keep(int(shown.round), peer, token)
            signature = sign(self._me.keys.peer, self._me.domain, appraisal)
            await self._broadcast(SignedAppraisal(appraised=appraisal, signature=signature))
            self._accepted[peer] = digest(shown), token
        return token

    def _is_taken(self, result: AttestationResult) -> bool:
        """Whether a device of this evidence speaks for another node, whose discount may still count."""
        now, life = int(self._follower.run_state.round), self._me.spec.audit.attested_rounds
        self._devices = {ueid: one for ueid, one in self._devices.items() if now <= one[1] + life}
        known = (self._devices.get(ueid) for ueid in result.ueids)
        return any(one is not None and one[0] != result.binding.node for one in known)

    def _bind(self, result: AttestationResult, round_id: int) -> None:
        """Record for which node the devices of this evidence speak."""
        for ueid in result.ueids:
            known = self._devices.get(ueid)
            if known is None or known[1] <= round_id:
                self._devices[ueid] = result.binding.node, round_id

    def _keep(self, round_id: int, node: PeerId, token: bytes) -> None:
        """Store the result that our appraisal names, for checking; of each node only the newest."""
        prefix = f"{KEPT}{node.hex()}/"
        self._me.store.set_value(f"{prefix}{round_id:012}", token)
        self._me.store.drop_values(prefix, set(sorted(self._me.store.values(prefix))[-RESULTS_KEPT:]))

    def _appraised(
        self, policy: AppraisalPolicy, node: PeerId, shown: EvidenceSubmission, evidence: Evidence
    ) -> AttestationResult:
        """What the evidence is worth now; in a thread, as it takes milliseconds and reads a file."""
        known = self._nonces.get(int(shown.round))
        if known is None:
            raise Unavailable(f"the manifest of round {shown.round} was not seen to become final here")
        nonce, nonce_at_s = known
        binding = Binding(
            deployment_id=self._me.spec.deployment_id,
            node=node,
            run_id=self._me.run_id,
            epoch=self._follower.run_state.epoch_of(int(shown.round)),
            code_digest=self._me.spec.audit.code,
            nonce=nonce,
            nonce_at_s=nonce_at_s,
        )
        at_s = self._unix_s()
        return appraise(evidence, binding, policy, self._collateral(at_s), at_s)

    def _collateral(self, at_s: int) -> Collateral:
        """What our fetcher last put into its file; nothing, as of now, without one."""
        path = self._me.config.collateral
        if path is None:
            return Collateral(fetched_at_s=at_s, intel=b"", certificates=(), crls=())
        try:
            with open(path, "rb") as file:
                return read_collateral(file.read(FILE_BYTES_MAX + 1))
        except (OSError, MalformedMessage) as error:
            raise Unavailable(f"collateral is not to be had here: {error}") from None
