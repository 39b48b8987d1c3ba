// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {Guarded} from "./Guarded.sol";
import {IEpochSettlement, IRunEscrow, ISlashCourt, IVerifierSet} from "./Interfaces.sol";
import {EpochResult, Judge, Resolution, Statements} from "./Statements.sol";
import {IBurnableToken, Tokens} from "./Tokens.sol";

/// @title Proposal, challenge and payment of certified payout tables.
/// @notice Per (run, epoch), with epochs counted from 0 and chained by prevResult:
///
///     NONE --propose--> PROPOSED --window over--> FINAL --claim period over--> SWEPT
///                          |  ^                     ^
///                      challenge                    |
///                          v                        |
///                      CHALLENGED -confirmed-> UPHELD
///                          | rejected, or not answered in time
///                          v
///                        NONE (the same result never comes back; no pay by default)
///
///         A result whose predecessor was rejected is an orphan; anyone may clear it.
contract EpochSettlement is IEpochSettlement, Judge, Guarded {
    using Tokens for IBurnableToken;
    using Statements for EpochResult;
    using Statements for Resolution;

    enum State {
        NONE,
        PROPOSED,
        CHALLENGED,
        UPHELD,
        FINAL,
        SWEPT
    }

    struct Params {
        uint64 challengeWindow; // seconds
        uint64 resolveWindow; // seconds
        uint64 claimPeriod; // seconds
        uint128 bond; // token units
    }

    struct Epoch {
        State state;
        uint64 until; // end of the window that the state waits for
        uint128 total;
        uint128 claimed;
        address challenger;
        bytes32 digest;
        bytes32 prevResult;
        bytes32 root;
        bytes32 modelHash;
    }

    /// @dev An Epoch as it is stored, in as few storage words as possible.
    struct Kept {
        State state;
        uint64 until;
        uint88 total;
        uint88 claimed;
        address challenger;
        bytes32 digest;
        bytes32 root;
        bytes32 lost; // digest of its rejected predecessor; zero while that is not rejected
    }

    struct Model {
        bytes32 runId; // zero until the result is final
        bytes32 modelHash;
    }

    IBurnableToken public immutable token;
    IRunEscrow public immutable escrow;
    IVerifierSet public immutable verifierSet;
    uint64 public immutable challengeWindow;
    uint64 public immutable resolveWindow;
    uint64 public immutable claimPeriod;
    uint128 public immutable bond;

    mapping(bytes32 runId => mapping(uint64 epoch => Kept)) private _epochs;
    mapping(bytes32 runId => mapping(uint64 epoch => mapping(uint256 word => uint256 bits))) private _claims;
    mapping(bytes32 digest => bool) public rejected;
    mapping(bytes32 digest => Model) private _models;
    /// @notice Bonds to give back; pull, so that no challenger can keep a result from falling.
    mapping(address challenger => uint256 amount) public bondsOwed;

    event ResultProposed(
        bytes32 indexed runId,
        uint64 indexed epoch,
        bytes32 digest,
        bytes32 root,
        bytes32 tableHash,
        bytes32 modelHash,
        uint128 total,
        uint64 windowEndsAt
    );
    event Challenged(
        bytes32 indexed runId, uint64 indexed epoch, address indexed challenger, bytes32 reasonHash, uint128 bond
    );
    event Resolved(bytes32 indexed runId, uint64 indexed epoch, address indexed challenger, bool stands, uint128 bond);
    event BondReleased(bytes32 indexed runId, uint64 indexed epoch, address indexed challenger, uint128 bond);
    event BondCollected(address indexed challenger, uint256 amount);
    event ResultRejected(bytes32 indexed runId, uint64 indexed epoch, bytes32 digest, uint128 total);
    event ResultFinalized(
        bytes32 indexed runId, uint64 indexed epoch, bytes32 digest, uint128 total, uint64 claimEndsAt
    );
    event Claimed(
        bytes32 indexed runId, uint64 indexed epoch, uint256 index, address indexed account, uint128 amount
    );
    event Swept(bytes32 indexed runId, uint64 indexed epoch, address indexed buyer, uint128 amount);

    error BadParams();
    error WrongState(State state);
    error WrongSetVersion(uint32 arrived, uint32 pinned);
    error WrongPrevious(bytes32 arrived, bytes32 expected);
    error RejectedBefore(bytes32 digest);
    error WindowOver(uint64 endedAt);
    error TooEarly(uint64 readyAt);
    error PreviousNotFinal(uint64 epoch);
    error NotAnOrphan();
    error AlreadyClaimed(uint256 index);
    error WrongProof(uint256 index);
    error NothingOwed(address who);
    error AboveTotal(uint128 claimed, uint128 total);

    constructor(
        bytes32 deploymentId_,
        IBurnableToken token_,
        IRunEscrow escrow_,
        IVerifierSet verifierSet_,
        ISlashCourt court,
        Params memory p
    ) Judge("AssayEpochSettlement", deploymentId_) {
        if (escrow_.settlement() != address(this) || p.challengeWindow == 0 || p.claimPeriod == 0) revert BadParams();
        // Without time to answer, or with nothing to lose, any challenge would be the end of any result.
        if (p.resolveWindow == 0 || p.bond == 0) revert BadParams();
        // Stake must outlive every road that can end in a slash for this epoch's work.
        uint256 slowest = uint256(p.challengeWindow) + p.resolveWindow + court.vetoWindow() + court.executeWindow()
            + court.margin();
        if (court.vault().unbondingDelay() <= slowest) revert BadParams();
        token = token_;
        escrow = escrow_;
        verifierSet = verifierSet_;
        challengeWindow = p.challengeWindow;
        resolveWindow = p.resolveWindow;
        claimPeriod = p.claimPeriod;
        bond = p.bond;
    }

    // ---- towards a final result

    function propose(EpochResult calldata r, uint8 certType, bytes calldata cert) external nonReentrant {
        _requireOurs(r.deploymentId);
        uint32 pinned = escrow.setVersionOf(r.runId);
        if (r.setVersion != pinned) revert WrongSetVersion(r.setVersion, pinned);
        Kept storage e = _epochs[r.runId][r.epoch];
        if (e.state != State.NONE) revert WrongState(e.state);
        bytes32 previous = r.epoch == 0 ? bytes32(0) : _epochs[r.runId][r.epoch - 1].digest;
        // Digests, and zero for "none": equal is what is meant.
        // slither-disable-next-line incorrect-equality
        if (r.prevResult != previous || (r.epoch != 0 && previous == 0)) revert WrongPrevious(r.prevResult, previous);
        bytes32 digest = resultDigest(r);
        if (rejected[digest]) revert RejectedBefore(digest);
        verifierSet.verify(pinned, digest, certType, cert);

        uint64 until = uint64(block.timestamp) + challengeWindow;
        (e.state, e.until, e.total) = (State.PROPOSED, until, uint88(r.total)); // all else of NONE is zero
        (e.digest, e.root) = (digest, r.root);
        _models[digest].modelHash = r.modelHash;
        emit ResultProposed(r.runId, r.epoch, digest, r.root, r.tableHash, r.modelHash, r.total, until);
        escrow.reserve(r.runId, r.epoch, r.total);
        // Last, because a cap or a budget is the better answer to a total of any size.
        if (r.total > type(uint88).max) revert AboveTotal(r.total, type(uint88).max);
    }

    /// @notice Challenges a result, with a bond that burns if the result is confirmed.
    function challenge(bytes32 runId, uint64 epoch, bytes32 reasonHash) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.PROPOSED);
        if (block.timestamp >= e.until) revert WindowOver(e.until);
        e.state = State.CHALLENGED;
        e.until = uint64(block.timestamp) + resolveWindow;
        e.challenger = msg.sender;
        emit Challenged(runId, epoch, msg.sender, reasonHash, bond);
        token.pull(bond);
    }

    /// @notice Answers a challenge by a quorum of the run's set over Resolution.
    function resolve(bytes32 runId, uint64 epoch, bool stands, uint8 certType, bytes calldata cert)
        external
        nonReentrant
    {
        Kept storage e = _in(runId, epoch, State.CHALLENGED);
        if (block.timestamp >= e.until) revert WindowOver(e.until);
        verifierSet.verify(
            escrow.setVersionOf(runId), resolutionDigest(runId, epoch, e.digest, stands), certType, cert
        );
        emit Resolved(runId, epoch, e.challenger, stands, bond);
        if (stands) {
            e.state = State.UPHELD;
            token.destroy(bond);
        } else {
            _reject(runId, epoch, e);
        }
    }

    /// @notice Ends a challenge that was not answered in time: no pay, the bond is returned. Anyone may call.
    function timeoutChallenge(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.CHALLENGED);
        if (block.timestamp < e.until) revert TooEarly(e.until);
        _reject(runId, epoch, e);
    }

    /// @notice Clears a result whose predecessor is gone; any bond is free. Anyone may call.
    function clearOrphan(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _epochs[runId][epoch];
        if (e.state != State.PROPOSED && e.state != State.CHALLENGED && e.state != State.UPHELD) {
            revert WrongState(e.state);
        }
        if (e.lost == 0) revert NotAnOrphan();
        _reject(runId, epoch, e);
    }

    /// @notice Makes a result final after its window, in the order of epochs. Anyone may call.
    function finalize(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _epochs[runId][epoch];
        if (e.state == State.PROPOSED) {
            if (block.timestamp < e.until) revert TooEarly(e.until);
        } else if (e.state != State.UPHELD) {
            revert WrongState(e.state);
        }
        if (epoch != 0 && (_epochs[runId][epoch - 1].state < State.FINAL || e.lost != 0)) {
            revert PreviousNotFinal(epoch - 1);
        }
        e.state = State.FINAL;
        e.until = uint64(block.timestamp) + claimPeriod;
        _models[e.digest].runId = runId;
        emit ResultFinalized(runId, epoch, e.digest, e.total, e.until);
        escrow.settle(runId, epoch);
    }

    // ---- money out

    /// @notice Pays one leaf to the account it names; anyone may send it.
    function claim(
        bytes32 runId,
        uint64 epoch,
        uint256 index,
        address account,
        uint128 amount,
        bytes32[] calldata proof
    ) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.FINAL);
        if (isClaimed(runId, epoch, index)) revert AlreadyClaimed(index);
        if (!MerkleProof.verifyCalldata(proof, e.root, leafOf(runId, epoch, index, account, amount))) {
            revert WrongProof(index);
        }
        // The root is a claim of the verifiers; the total is what they signed for. Never pay above it.
        if (amount > e.total - e.claimed) revert AboveTotal(e.claimed + amount, e.total);
        _claims[runId][epoch][index >> 8] |= 1 << (index & 255);
        e.claimed += uint88(amount);
        emit Claimed(runId, epoch, index, account, amount);
        escrow.pay(runId, account, amount);
    }

    /// @notice Returns the unclaimed rest to the buyer after the claim period. Anyone may call.
    function sweepUnclaimed(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.FINAL);
        if (block.timestamp < e.until) revert TooEarly(e.until);
        uint128 amount = e.total - e.claimed;
        e.state = State.SWEPT;
        emit Swept(runId, epoch, escrow.buyerOf(runId), amount);
        escrow.returnUnclaimed(runId, amount);
    }

    /// @notice Pays out returned bonds to the account `who`. Anyone may call.
    function collectBond(address who) external nonReentrant {
        uint256 amount = bondsOwed[who];
        if (amount == 0) revert NothingOwed(who);
        bondsOwed[who] = 0;
        emit BondCollected(who, amount);
        token.push(who, amount);
    }

    // ---- reads

    function getEpoch(bytes32 runId, uint64 epoch) external view returns (Epoch memory) {
        Kept storage e = _epochs[runId][epoch];
        bytes32 previous = e.lost;
        if (e.state != State.NONE && epoch != 0 && previous == 0) previous = _epochs[runId][epoch - 1].digest;
        bytes32 modelHash = _models[e.digest].modelHash;
        return
            Epoch(e.state, e.until, e.total, e.claimed, e.challenger, e.digest, previous, e.root, modelHash);
    }

    /// @notice The run and the model of a final result; zeros for any other digest.
    function finalModel(bytes32 digest) external view returns (bytes32 runId, bytes32 modelHash) {
        runId = _models[digest].runId;
        if (runId != 0) modelHash = _models[digest].modelHash;
    }

    function isClaimed(bytes32 runId, uint64 epoch, uint256 index) public view returns (bool) {
        return _claims[runId][epoch][index >> 8] & (1 << (index & 255)) != 0;
    }

    /// @dev Hashed twice, so that an inner node of the tree can never pass for a leaf.
    function leafOf(bytes32 runId, uint64 epoch, uint256 index, address account, uint128 amount)
        public
        pure
        returns (bytes32)
    {
        return keccak256(bytes.concat(keccak256(abi.encode(runId, epoch, index, account, amount))));
    }

    function resultDigest(EpochResult calldata r) public view returns (bytes32) {
        return _hashTypedDataV4(r.structHash());
    }

    function resolutionDigest(bytes32 runId, uint64 epoch, bytes32 result, bool stands)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(Resolution(deploymentId, runId, epoch, result, stands).structHash());
    }

    // ---- inside

    function _in(bytes32 runId, uint64 epoch, State state) private view returns (Kept storage e) {
        e = _epochs[runId][epoch];
        if (e.state != state) revert WrongState(e.state);
    }

    /// @dev A bond is at stake in the state CHALLENGED only; there it becomes its owner's again.
    function _reject(bytes32 runId, uint64 epoch, Kept storage e) private {
        bool bonded = e.state == State.CHALLENGED;
        (address challenger, bytes32 digest, uint128 total) = (e.challenger, e.digest, e.total);
        delete _epochs[runId][epoch];
        delete _models[digest];
        rejected[digest] = true;
        // What was built on it keeps its name; an orphan already keeps the name it has.
        Kept storage next = _epochs[runId][epoch + 1];
        if (next.state != State.NONE && next.lost == 0) next.lost = digest;
        emit ResultRejected(runId, epoch, digest, total);
        if (bonded) {
            bondsOwed[challenger] += bond;
            emit BondReleased(runId, epoch, challenger, bond);
        }
        escrow.release(runId, total);
    }
}
