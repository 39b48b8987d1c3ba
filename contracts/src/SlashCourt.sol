// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Guarded} from "./Guarded.sol";
import {IEpochSettlement, IRunEscrow, IStakeVault, IVerifierSet} from "./Interfaces.sol";
import {PermitAndCall} from "./PermitAndCall.sol";
import {Discharge, EpochResult, Judge, SlashOrder, Statement, Statements, Veto} from "./Statements.sol";
import {Tokens} from "./Tokens.sol";

/// @title The only contract that can slash.
/// @notice Two separate procedures. Objective: two signed statements, or two signed results of one epoch, that
///         contradict each other take the whole stake at once, on anyone's report. Subjective: a verifier quorum's slash order opens a case with
///         a bond against the offender's lot in that run, keeps the lot, waits out a veto window, takes a share of it,
///         capped by lot and time whatever the number of cases, and pays it out after a delay in which a veto still
///         gives it back. The same quorum discharges who left its run early: the lot's evidence window begins at once.
///
///     NONE --openCase--> OPEN --veto window over, execute--> EXECUTED --delay over, payOut--> PAID
///                          |                                    |
///                          |--veto (quorum of the current set)--+--> VETOED (bond burnt, pot back)
///                          |--not executed in time, expire----> EXPIRED (bond burnt)
///                          '--appeal--> APPEALED --won--> VETOED; else OPEN again, for a new execute window
contract SlashCourt is Judge, Guarded, PermitAndCall {
    using Tokens for IERC20;
    using Statements for Statement;
    using Statements for SlashOrder;
    using Statements for Veto;
    using Statements for Discharge;

    uint256 public constant PPM = 1_000_000;
    uint8 private constant OPERATOR = 0;
    uint8 private constant VERIFIER = 1;
    /// @notice The time over which the cap of a lot counts.
    uint64 public constant CAP_PERIOD = 30 days;

    enum State {
        NONE,
        OPEN,
        VETOED,
        EXECUTED,
        EXPIRED,
        PAID,
        APPEALED
    }

    struct Params {
        uint64 evidenceWindow; // seconds from an offence, or at the latest its run's end, to its case
        uint64 vetoWindow; // seconds
        uint64 executeWindow; // seconds
        uint64 margin; // seconds
        uint64 payoutDelay; // seconds from a slash by order to its pay-out
        uint64 reportWindow; // seconds for which a commitment to report counts
        uint32 casePpmMax; // of a lot, by all cases about it in CAP_PERIOD
        uint96 caseBond; // token units
    }

    struct Case {
        State state;
        uint8 role;
        uint32 ppm;
        uint64 vetoEndsAt;
        uint64 executeBy;
        uint64 payableAt; // zero before the slash
        address offender;
        uint64 signers; // bitmap of the members of the run's set that signed the order
        address challenger;
        address opener;
        bytes32 runId;
        bytes32 evidenceHash;
        bytes32 lot; // the commitment of the lot that it is about
    }

    /// @dev Counts up until no case was opened for a whole period: no 30 days see more than the cap.
    struct Usage {
        uint64 last;
        uint32 ppm;
    }

    struct Commitment {
        uint64 atBlock;
        uint64 atTime;
    }

    IStakeVault public immutable vault;
    IVerifierSet public immutable verifierSet;
    IRunEscrow public immutable escrow;
    address public immutable appeals;
    uint64 public immutable evidenceWindow;
    uint64 public immutable vetoWindow;
    uint64 public immutable executeWindow;
    uint64 public immutable margin;
    uint64 public immutable payoutDelay;
    uint64 public immutable reportWindow;
    uint32 public immutable casePpmMax;
    uint96 public immutable caseBond;

    mapping(bytes32 offenceId => bool) public punished;
    mapping(bytes32 caseId => Case) private _cases;
    mapping(address account => mapping(uint8 role => mapping(bytes32 commitment => Usage))) private _usage;
    mapping(address reporter => mapping(bytes32 commitment => Commitment)) public commitments;

    event Equivocation(
        address indexed account,
        bytes32 indexed offenceId,
        bytes32 indexed runId,
        address hotKey,
        bytes32 valueA,
        bytes32 valueB
    );
    event CaseOpened(
        bytes32 indexed caseId,
        address indexed offender,
        bytes32 indexed runId,
        uint64 epoch,
        uint8 role,
        uint32 ppm,
        bytes32 evidenceHash,
        address challenger,
        uint64 vetoEndsAt,
        uint64 executeBy
    );
    event CaseExecuted(bytes32 indexed caseId, uint256 amount, uint64 payableAt);
    event CaseClosed(bytes32 indexed caseId, State outcome);
    event CaseAppealed(bytes32 indexed caseId);
    event CaseResumed(bytes32 indexed caseId, uint64 executeBy);
    event ReportCommitted(address indexed reporter, bytes32 commitment);

    error BadParams();
    error NotAContradiction();
    error DifferentSigners(address a, address b);
    error UnknownSigner(address signer);
    error AlreadyPunished(bytes32 offenceId);
    error OffenceOfAnotherRun(bytes32 offenceId, bytes32 runId);
    error AboveCap(uint32 ppm, uint32 cap);
    error WrongState(State state);
    error TooEarly(uint64 readyAt);
    error WindowOver(uint64 endedAt);
    error NotTheAccused(address who);
    error OnlyAppeals();
    error NotCommitted(bytes32 commitment);
    error CommittedInThisBlock(bytes32 commitment);

    constructor(
        bytes32 deploymentId_,
        IStakeVault vault_,
        IVerifierSet verifierSet_,
        IRunEscrow escrow_,
        address appeals_,
        Params memory p
    ) Judge("AssaySlashCourt", deploymentId_) PermitAndCall(vault_.token()) {
        if (vault_.court() != address(this) || appeals_ == address(0)) revert BadParams();
        if (p.casePpmMax == 0 || p.casePpmMax > PPM || p.vetoWindow == 0 || p.executeWindow == 0) revert BadParams();
        if (p.payoutDelay == 0 || p.reportWindow == 0 || p.caseBond == 0) revert BadParams();
        // Free stake leaves no sooner than a contradiction in the last piece of work can be reported.
        uint256 slowest = uint256(p.evidenceWindow) + p.vetoWindow + p.executeWindow + p.margin;
        if (vault_.unbondingDelay() <= slowest) revert BadParams();
        // A veto, at its latest, still gives back to the cap what its case counted.
        if (uint256(p.vetoWindow) + p.executeWindow + p.payoutDelay >= CAP_PERIOD) revert BadParams();
        vault = vault_;
        verifierSet = verifierSet_;
        escrow = escrow_;
        appeals = appeals_;
        evidenceWindow = p.evidenceWindow;
        vetoWindow = p.vetoWindow;
        executeWindow = p.executeWindow;
        margin = p.margin;
        payoutDelay = p.payoutDelay;
        reportWindow = p.reportWindow;
        casePpmMax = p.casePpmMax;
        caseBond = p.caseBond;
    }

    // ---- objective: the evidence is the proof

    /// @notice Commits to a report without revealing the evidence; see `commitmentOf`.
    /// @dev    Stored by sender: no other account can set, move or use it. Sending it again restarts its time.
    function commitReport(bytes32 commitment) external {
        commitments[msg.sender][commitment] = Commitment(uint64(block.number), uint64(block.timestamp));
        emit ReportCommitted(msg.sender, commitment);
    }

    /// @notice Takes the signer's whole stake, in every role, for two values in one slot, and bans it.
    /// @param salt Of a commitment that the sender made in an earlier block and within the report window:
    ///             an account that copies a report from the mempool has none. Zero reports without one:
    ///             the slash is the same, and the reporter's share burns.
    /// @dev    An account is banned once, so no offence is punished twice, whatever ids others have used up.
    function reportEquivocation(
        Statement calldata a,
        bytes calldata sigA,
        Statement calldata b,
        bytes calldata sigB,
        bytes32 salt
    ) external nonReentrant {
        _requireOurs(a.deploymentId);
        _requireOurs(b.deploymentId);
        if (
            a.runId != b.runId || a.epoch != b.epoch || a.kind != b.kind || a.slot != b.slot || a.value == b.value
        ) revert NotAContradiction();
        address signer = ECDSA.recover(statementDigest(a), sigA);
        address other = ECDSA.recover(statementDigest(b), sigB);
        if (signer != other) revert DifferentSigners(signer, other);
        address account = vault.accountOf(signer);
        bytes32 offenceId = equivocationId(signer, a.runId, a.epoch, a.kind, a.slot);
        _punish(offenceId, account, signer, a.runId, a.value, b.value, salt);
    }

    /// @notice The same for two different results that one verifier signed for one epoch of a run of its set: what a
    ///         quorum that certifies two results cannot hide, nor a hot key replaced in between. Anything but the digest may
    ///         differ or be equal.
    function reportDoubleResult(
        EpochResult calldata a,
        bytes calldata sigA,
        EpochResult calldata b,
        bytes calldata sigB,
        bytes32 salt
    ) external nonReentrant {
        (bytes32 first, bytes32 second) = _resultDigests(a, b);
        if (a.runId != b.runId || a.epoch != b.epoch || first == second) revert NotAContradiction();
        (address account, address signer) = _oneAccount(first, sigA, second, sigB);
        // No member has seat zero: equal is what is meant.
        // slither-disable-next-line incorrect-equality
        if (verifierSet.seatOf(escrow.setVersionOf(a.runId), account) == 0) revert UnknownSigner(signer);
        _punish(doubleResultId(account, a.runId, a.epoch), account, signer, a.runId, first, second, salt);
    }

    // ---- subjective: a quorum's slash order, slowly and capped

    /// @notice Opens a case on a slash order of the run's verifier set. The case's id is the offence's id, which begins
    ///         with the first 12 bytes of the run's: no quorum uses up the id of an offence in another run. The sender
    ///         puts up a bond, which burns if the case is vetoed or left to expire.
    /// @dev   What is left of the lot's cap is taken if that is less than the order names. Only who locked a lot for
    ///        the run, or for a term in its set, can be accused: the vault has no other to hold.
    function openCase(SlashOrder calldata r, uint8 certType, bytes calldata cert) external nonReentrant {
        _requireOurs(r.deploymentId);
        if (r.ppm == 0 || r.ppm > casePpmMax) revert AboveCap(r.ppm, casePpmMax);
        if (bytes12(r.offenceId) != bytes12(r.runId)) revert OffenceOfAnotherRun(r.offenceId, r.runId);
        if (punished[r.offenceId]) revert AlreadyPunished(r.offenceId);
        uint32 version = escrow.setVersionOf(r.runId);
        // To the second from which the run's lots can be released.
        uint64 endsAt = escrow.closesAtOf(r.runId) + evidenceWindow;
        if (block.timestamp >= endsAt) revert WindowOver(endsAt);
        // The weight is not needed: verify reverts below a quorum.
        // slither-disable-next-line unused-return
        (, uint256 signers) = verifierSet.verify(version, slashOrderDigest(r), certType, cert);
        punished[r.offenceId] = true;
        bytes32 lot = r.role == VERIFIER ? bytes32(uint256(version)) : r.runId;
        uint32 ppm = _useCap(r.offender, r.role, lot, r.ppm);
        _open(r, lot, ppm, uint64(signers));
        vault.hold(r.offender, r.role, lot);
        vault.lockBond(r.offenceId, msg.sender, caseBond);
        token.pull(caseBond);
        token.push(address(vault), caseBond);
    }

    /// @notice Ends a case as if it had not been, by a quorum of the current set over Veto: as long as it can
    ///         still be carried out, and then until it is paid out. What was taken goes back.
    function veto(bytes32 caseId, bytes32 reasonHash, uint8 certType, bytes calldata cert) external nonReentrant {
        Case storage c = _cases[caseId];
        bool isExecuted = c.state == State.EXECUTED;
        if (!isExecuted && c.state != State.OPEN) revert WrongState(c.state);
        uint64 until = isExecuted ? c.payableAt : c.executeBy;
        if (block.timestamp >= until) revert WindowOver(until);
        // slither-disable-next-line unused-return
        verifierSet.verify(verifierSet.currentVersion(), vetoDigest(caseId, reasonHash), certType, cert);
        _reverse(caseId, c, isExecuted);
    }

    /// @notice Carries a slash order out after its veto window. Anyone may call.
    function execute(bytes32 caseId) external nonReentrant {
        Case storage c = _in(caseId, State.OPEN);
        if (block.timestamp < c.vetoEndsAt) revert TooEarly(c.vetoEndsAt);
        if (block.timestamp >= c.executeBy) revert WindowOver(c.executeBy);
        uint64 payableAt = uint64(block.timestamp) + payoutDelay;
        (c.state, c.payableAt) = (State.EXECUTED, payableAt);
        address buyer = escrow.buyerOf(c.runId);
        uint256 amount =
            vault.slash(c.offender, c.role, c.lot, c.ppm, caseId, buyer, c.challenger, payableAt);
        emit CaseExecuted(caseId, amount, payableAt);
    }

    /// @notice Makes a slash final after its delay: shares may be collected, the bond too. Anyone may call.
    function payOut(bytes32 caseId) external nonReentrant {
        Case storage c = _in(caseId, State.EXECUTED);
        if (block.timestamp < c.payableAt) revert TooEarly(c.payableAt);
        c.state = State.PAID;
        emit CaseClosed(caseId, State.PAID);
        vault.unhold(c.offender, c.role, c.lot);
        vault.returnBond(caseId);
        vault.payOut(caseId);
    }

    /// @notice Ends a case that was not executed in time. Anyone may call.
    function expire(bytes32 caseId) external nonReentrant {
        Case storage c = _in(caseId, State.OPEN);
        if (block.timestamp < c.executeBy) revert TooEarly(c.executeBy);
        c.state = State.EXPIRED;
        _giveBackCap(c);
        emit CaseClosed(caseId, State.EXPIRED);
        vault.unhold(c.offender, c.role, c.lot);
        vault.burnBond(caseId);
    }

    // ---- an appeal, which the appeal court judges

    /// @notice Stops a case while the account that it accuses appeals it; the appeal court's move.
    /// @dev   It resumes the case in bounded time, so the case still has an exit.
    function suspend(bytes32 caseId, address who)
        external
        nonReentrant
        returns (bytes32 runId, uint64 signers, address opener)
    {
        if (msg.sender != appeals) revert OnlyAppeals();
        Case storage c = _in(caseId, State.OPEN);
        if (c.offender != who || c.role != OPERATOR) revert NotTheAccused(who);
        if (block.timestamp >= c.vetoEndsAt) revert WindowOver(c.vetoEndsAt);
        c.state = State.APPEALED;
        emit CaseAppealed(caseId);
        return (c.runId, c.signers, c.opener);
    }

    /// @notice Ends a case as a veto does, or lets it go on for a whole execute window; the appeal court's move.
    function resume(bytes32 caseId, bool isReversed) external nonReentrant {
        if (msg.sender != appeals) revert OnlyAppeals();
        Case storage c = _in(caseId, State.APPEALED);
        if (isReversed) {
            _reverse(caseId, c, false);
            return;
        }
        uint64 from = block.timestamp > c.vetoEndsAt ? uint64(block.timestamp) : c.vetoEndsAt;
        (c.state, c.executeBy) = (State.OPEN, from + executeWindow);
        emit CaseResumed(caseId, c.executeBy);
    }

    // ---- who leaves early

    /// @notice Ends what an operator's lot is bound to in a run that goes on without it, by a quorum of the run's verifier
    ///         set over Discharge. Anyone may call. Open cases keep the lot, and more can be opened until it is released.
    /// @dev   Only of a run that was opened, so nothing is known to be discharged before it is begun. A certificate can be
    ///        used again if the account locks for the run once more, in which it has no second seat.
    function discharge(bytes32 runId, address account, uint8 certType, bytes calldata cert) external nonReentrant {
        uint32 version = escrow.setVersionOf(runId);
        // slither-disable-next-line unused-return
        verifierSet.verify(version, dischargeDigest(runId, account), certType, cert);
        vault.discharge(account, OPERATOR, runId);
    }

    // ---- reads

    function getCase(bytes32 caseId) external view returns (Case memory) {
        return _cases[caseId];
    }

    function equivocationId(address signer, bytes32 runId, uint64 epoch, uint8 kind, bytes32 slot)
        public
        view
        returns (bytes32)
    {
        return keccak256(abi.encode(deploymentId, signer, runId, epoch, kind, slot));
    }

    function doubleResultId(address account, bytes32 runId, uint64 epoch) public view returns (bytes32) {
        return keccak256(abi.encode(deploymentId, account, runId, epoch));
    }

    /// @notice What cases may still take of a lot, if they are opened now.
    function capLeft(address account, uint8 role, bytes32 commitment) public view returns (uint32) {
        Usage memory usage = _usage[account][role][commitment];
        return block.timestamp >= usage.last + CAP_PERIOD ? casePpmMax : casePpmMax - usage.ppm;
    }

    /// @notice What `reporter` commits to. It contains the reporter, so a copied salt is of no use to another account.
    function commitmentOf(address reporter, bytes32 offenceId, bytes32 salt) public view returns (bytes32) {
        return keccak256(abi.encode(deploymentId, reporter, offenceId, salt));
    }

    function statementDigest(Statement calldata s) public view returns (bytes32) {
        return _hashTypedDataV4(s.structHash());
    }

    function slashOrderDigest(SlashOrder calldata r) public view returns (bytes32) {
        return _hashTypedDataV4(r.structHash());
    }

    function vetoDigest(bytes32 caseId, bytes32 reasonHash) public view returns (bytes32) {
        return _hashTypedDataV4(Veto(deploymentId, caseId, reasonHash).structHash());
    }

    function dischargeDigest(bytes32 runId, address account) public view returns (bytes32) {
        return _hashTypedDataV4(Discharge(deploymentId, runId, account).structHash());
    }

    // ---- inside

    function _in(bytes32 caseId, State state) private view returns (Case storage c) {
        c = _cases[caseId];
        if (c.state != state) revert WrongState(c.state);
    }

    function _resultDigests(EpochResult calldata a, EpochResult calldata b) private view returns (bytes32, bytes32) {
        IEpochSettlement settlement = IEpochSettlement(escrow.settlement());
        return (settlement.resultDigest(a), settlement.resultDigest(b));
    }

    /// @dev The account of both signatures, and the hot key of the first.
    function _oneAccount(bytes32 first, bytes calldata sigA, bytes32 second, bytes calldata sigB)
        private
        view
        returns (address account, address signer)
    {
        signer = ECDSA.recover(first, sigA);
        address other = ECDSA.recover(second, sigB);
        account = vault.accountOf(signer);
        if (vault.accountOf(other) != account) revert DifferentSigners(signer, other);
    }

    function _reverse(bytes32 caseId, Case storage c, bool isExecuted) private {
        c.state = State.VETOED;
        _giveBackCap(c);
        emit CaseClosed(caseId, State.VETOED);
        if (isExecuted) vault.restore(caseId);
        vault.unhold(c.offender, c.role, c.lot);
        vault.burnBond(caseId);
    }

    function _open(SlashOrder calldata r, bytes32 lot, uint32 ppm, uint64 signers) private {
        uint64 vetoEndsAt = uint64(block.timestamp) + vetoWindow;
        uint64 executeBy = vetoEndsAt + executeWindow;
        _cases[r.offenceId] = Case({
            state: State.OPEN,
            role: r.role,
            ppm: ppm,
            vetoEndsAt: vetoEndsAt,
            executeBy: executeBy,
            payableAt: 0,
            offender: r.offender,
            signers: signers,
            challenger: r.challenger,
            opener: msg.sender,
            runId: r.runId,
            evidenceHash: r.evidenceHash,
            lot: lot
        });
        emit CaseOpened(
            r.offenceId,
            r.offender,
            r.runId,
            r.epoch,
            r.role,
            ppm,
            r.evidenceHash,
            r.challenger,
            vetoEndsAt,
            executeBy
        );
    }

    function _punish(
        bytes32 offenceId,
        address account,
        address signer,
        bytes32 runId,
        bytes32 valueA,
        bytes32 valueB,
        bytes32 salt
    ) private {
        if (account == address(0)) revert UnknownSigner(signer);
        address reporter = salt == 0 ? address(0) : _committed(offenceId, salt);
        punished[offenceId] = true;
        emit Equivocation(account, offenceId, runId, signer, valueA, valueB);
        vault.bar(account, offenceId, reporter);
    }

    /// @dev Counts a new case: what the order names, or the rest of the cap.
    function _useCap(address account, uint8 role, bytes32 lot, uint32 asked) private returns (uint32 ppm) {
        uint32 left = capLeft(account, role, lot);
        // Nothing is left exactly when the whole cap was used.
        // slither-disable-next-line incorrect-equality
        if (left == 0) revert AboveCap(asked, 0);
        ppm = asked < left ? asked : left;
        _usage[account][role][lot] = Usage(uint64(block.timestamp), casePpmMax - left + ppm);
    }

    /// @dev A case that ends without a slash no longer counts. Once a period has passed since the case was opened, its
    ///      lot's count may have started again without it, so a later end gives nothing back.
    function _giveBackCap(Case storage c) private {
        uint64 openedAt = c.vetoEndsAt - vetoWindow;
        if (block.timestamp < openedAt + CAP_PERIOD) _usage[c.offender][c.role][c.lot].ppm -= c.ppm;
    }

    /// @dev The sender, if it promised this report early enough and not too early.
    function _committed(bytes32 offenceId, bytes32 salt) private view returns (address) {
        bytes32 commitment = commitmentOf(msg.sender, offenceId, salt);
        Commitment memory made = commitments[msg.sender][commitment];
        if (made.atTime == 0) revert NotCommitted(commitment);
        if (made.atBlock >= block.number) revert CommittedInThisBlock(commitment);
        uint64 endsAt = made.atTime + reportWindow;
        if (block.timestamp >= endsAt) revert WindowOver(endsAt);
        return msg.sender;
    }
}
