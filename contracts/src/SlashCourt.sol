// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Guarded} from "./Guarded.sol";
import {IRunEscrow, IStakeVault, IVerifierSet} from "./Interfaces.sol";
import {Judge, Ruling, Statement, Statements, Veto} from "./Statements.sol";

/// @title The only one who may slash.
/// @notice Two roads, kept apart. Objective: two signed statements that contradict each other take the
///         whole stake at once, on anyone's report. Subjective: a verifier quorum's ruling opens a case,
///         freezes the offender's withdrawals, waits out a veto window and takes a capped share.
///
///     NONE --openCase--> OPEN --veto window over, execute--> EXECUTED
///                          |--veto (quorum of the current set)--> VETOED
///                          '--nobody executed in time, expire--> EXPIRED
contract SlashCourt is Judge, Guarded {
    using Statements for Statement;
    using Statements for Ruling;
    using Statements for Veto;

    uint256 public constant PPM = 1_000_000;
    uint8 private constant ROLES = 2;

    enum State {
        NONE,
        OPEN,
        VETOED,
        EXECUTED,
        EXPIRED
    }

    struct Params {
        uint64 evidenceWindow; // seconds from an offence, or at the latest its run's end, to its case
        uint64 vetoWindow; // seconds
        uint64 executeWindow; // seconds
        uint64 margin; // seconds
        uint32 casePpmMax;
    }

    struct Case {
        State state;
        uint8 role;
        uint32 ppm;
        uint64 vetoEndsAt;
        uint64 executeBy;
        address offender;
        address challenger;
        bytes32 runId;
        bytes32 evidenceHash;
    }

    IStakeVault public immutable vault;
    IVerifierSet public immutable verifierSet;
    IRunEscrow public immutable escrow;
    uint64 public immutable evidenceWindow;
    uint64 public immutable vetoWindow;
    uint64 public immutable executeWindow;
    uint64 public immutable margin;
    uint32 public immutable casePpmMax;

    mapping(bytes32 offenceId => bool) public punished;
    mapping(bytes32 caseId => Case) private _cases;

    event Equivocation(
        address indexed account, bytes32 indexed offenceId, address hotKey, bytes32 valueA, bytes32 valueB
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
    event CaseClosed(bytes32 indexed caseId, State outcome, uint256 amount);

    error BadParams();
    error NotAContradiction();
    error DifferentSigners(address a, address b);
    error UnknownSigner(address signer);
    error AlreadyPunished(bytes32 offenceId);
    error AboveCap(uint32 ppm, uint32 cap);
    error UnknownRole(uint8 role);
    error WrongState(State state);
    error TooEarly(uint64 readyAt);
    error WindowOver(uint64 endedAt);

    constructor(
        bytes32 deploymentId_,
        IStakeVault vault_,
        IVerifierSet verifierSet_,
        IRunEscrow escrow_,
        Params memory p
    ) Judge("AssaySlashCourt", deploymentId_) {
        if (vault_.court() != address(this)) revert BadParams();
        if (p.casePpmMax == 0 || p.casePpmMax > PPM || p.vetoWindow == 0 || p.executeWindow == 0) revert BadParams();
        // Nobody may leave before a case about the last piece of work can be opened.
        uint256 slowest = uint256(p.evidenceWindow) + p.vetoWindow + p.executeWindow + p.margin;
        if (vault_.unbondingDelay() <= slowest) revert BadParams();
        // A case holds withdrawals to its end, so the vault must let it.
        if (vault_.freezeMax() < uint256(p.vetoWindow) + p.executeWindow) revert BadParams();
        vault = vault_;
        verifierSet = verifierSet_;
        escrow = escrow_;
        evidenceWindow = p.evidenceWindow;
        vetoWindow = p.vetoWindow;
        executeWindow = p.executeWindow;
        margin = p.margin;
        casePpmMax = p.casePpmMax;
    }

    // ---- objective: evidence speaks for itself

    /// @notice Takes the signer's whole stake, in every role, for two values in one slot, and bars it.
    /// @dev    An account is barred once, so no offence is punished twice, whatever ids others have used up.
    function reportEquivocation(
        Statement calldata a,
        bytes calldata sigA,
        Statement calldata b,
        bytes calldata sigB
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
        if (account == address(0)) revert UnknownSigner(signer);
        bytes32 offenceId = equivocationId(signer, a.runId, a.epoch, a.kind, a.slot);
        punished[offenceId] = true;
        emit Equivocation(account, offenceId, signer, a.value, b.value);
        vault.bar(account, offenceId, escrow.buyerOf(a.runId), msg.sender);
    }

    // ---- subjective: a quorum's ruling, slowly and capped

    /// @notice Opens a case on a ruling of the run's verifier set. The case's id is the offence's id.
    function openCase(Ruling calldata r, uint8 certType, bytes calldata cert) external nonReentrant {
        _requireOurs(r.deploymentId);
        if (r.ppm == 0 || r.ppm > casePpmMax) revert AboveCap(r.ppm, casePpmMax);
        if (r.role >= ROLES) revert UnknownRole(r.role);
        if (punished[r.offenceId]) revert AlreadyPunished(r.offenceId);
        // The judges of a run that is over may have left with their stake.
        uint64 endsAt = escrow.closesAtOf(r.runId) + evidenceWindow;
        if (block.timestamp >= endsAt) revert WindowOver(endsAt);
        verifierSet.verify(escrow.setVersionOf(r.runId), rulingDigest(r), certType, cert);
        punished[r.offenceId] = true;
        uint64 vetoEndsAt = uint64(block.timestamp) + vetoWindow;
        uint64 executeBy = vetoEndsAt + executeWindow;
        _cases[r.offenceId] = Case(
            State.OPEN, r.role, r.ppm, vetoEndsAt, executeBy, r.offender, r.challenger, r.runId, r.evidenceHash
        );
        emit CaseOpened(
            r.offenceId,
            r.offender,
            r.runId,
            r.epoch,
            r.role,
            r.ppm,
            r.evidenceHash,
            r.challenger,
            vetoEndsAt,
            executeBy
        );
        vault.freeze(r.offender, executeBy);
    }

    /// @notice Stops a case inside its veto window, by a quorum of the current set over Veto.
    function veto(bytes32 caseId, bytes32 reasonHash, uint8 certType, bytes calldata cert) external nonReentrant {
        Case storage c = _open(caseId);
        if (block.timestamp >= c.vetoEndsAt) revert WindowOver(c.vetoEndsAt);
        verifierSet.verify(verifierSet.currentVersion(), vetoDigest(caseId, reasonHash), certType, cert);
        c.state = State.VETOED;
        emit CaseClosed(caseId, State.VETOED, 0);
    }

    /// @notice Carries a ruling out after its veto window. Anyone may call.
    function execute(bytes32 caseId) external nonReentrant {
        Case storage c = _open(caseId);
        if (block.timestamp < c.vetoEndsAt) revert TooEarly(c.vetoEndsAt);
        if (block.timestamp >= c.executeBy) revert WindowOver(c.executeBy);
        c.state = State.EXECUTED;
        uint256 amount = vault.slash(c.offender, c.role, c.ppm, caseId, escrow.buyerOf(c.runId), c.challenger);
        emit CaseClosed(caseId, State.EXECUTED, amount);
    }

    /// @notice Ends a case that nobody executed in time. Anyone may call.
    function expire(bytes32 caseId) external {
        Case storage c = _open(caseId);
        if (block.timestamp < c.executeBy) revert TooEarly(c.executeBy);
        c.state = State.EXPIRED;
        emit CaseClosed(caseId, State.EXPIRED, 0);
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

    function statementDigest(Statement calldata s) public view returns (bytes32) {
        return _hashTypedDataV4(s.structHash());
    }

    function rulingDigest(Ruling calldata r) public view returns (bytes32) {
        return _hashTypedDataV4(r.structHash());
    }

    function vetoDigest(bytes32 caseId, bytes32 reasonHash) public view returns (bytes32) {
        return _hashTypedDataV4(Veto(deploymentId, caseId, reasonHash).structHash());
    }

    function _open(bytes32 caseId) private view returns (Case storage c) {
        c = _cases[caseId];
        if (c.state != State.OPEN) revert WrongState(c.state);
    }
}
