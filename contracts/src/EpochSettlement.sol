// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {MerkleProof} from "@openzeppelin/contracts/utils/cryptography/MerkleProof.sol";
import {Guarded} from "./Guarded.sol";
import {IEpochSettlement, IRunEscrow, ISlashCourt, IVerifierSet} from "./Interfaces.sol";
import {Juries, Jury} from "./Juries.sol";
import {PermitAndCall} from "./PermitAndCall.sol";
import {EpochResult, Judge, Statements} from "./Statements.sol";
import {Tokens} from "./Tokens.sol";

/// @title Proposal, challenge and payment of certified payout tables.
/// @notice Per (run, epoch), with epochs counted from 0 and chained by prevResult:
///
///     NONE --propose--> PROPOSED --window over--> FINAL --claim period over--> SWEPT
///      ^                   |  ^
///      |               challenge  '-- the jury finds it right, or does not answer in time: a new window
///      |                   v          |
///      '--- wrong --- CHALLENGED -----'
///
///         A challenge is judged by a jury that is drawn after it, from the list of all staked verifiers but the signers of
///         the result. Who proposes and who challenges each put up a bond, which doubles with every challenge of the
///         epoch that ended: delay and theft cost more each time, and no answer, late or wrong, is the last.
///         A result that fell may be proposed again. One whose predecessor fell is an orphan until then; anyone may
///         clear it.
contract EpochSettlement is IEpochSettlement, Judge, Guarded, PermitAndCall {
    using Tokens for IERC20;
    using Juries for Jury;
    using Statements for EpochResult;

    enum State {
        NONE,
        PROPOSED,
        CHALLENGED,
        FINAL,
        SWEPT
    }

    enum Outcome {
        LAPSED,
        UPHELD,
        REJECTED
    }

    struct Params {
        uint64 challengeWindow; // seconds
        uint64 resolveWindow; // seconds
        uint64 claimPeriod; // seconds
        uint64 drawDelay; // blocks from a challenge to its jury
        uint8 jurySeats;
        uint96 bond; // token units, of the first proposal and the first challenge of an epoch
        address sink; // where forfeited bonds go: an address that nobody has the key of
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
        address proposer;
        uint128 bond; // of the next challenge or proposal
        uint64 drawFrom; // block from which a challenge's jury can be drawn; zero once it is drawn
        address[] jury; // one account for each seat
        uint256 voted; // bitmap of seats
    }

    /// @dev An Epoch as it is stored, in as few storage words as possible.
    struct Kept {
        State state;
        uint64 until;
        uint88 total;
        uint88 claimed;
        address challenger;
        uint48 asked; // block of the challenge
        uint32 entries; // on the jury list at that time
        address proposer;
        uint8 level; // of the proposer's bond
        uint64 signers; // bitmap of the members of the run's set that signed
        bytes32 digest;
        bytes32 root;
        bytes32 lost; // digest of its rejected predecessor; zero while that is not rejected
    }

    /// @notice One line of a payout table, and its proof.
    struct Row {
        uint256 index;
        address account;
        uint128 amount;
        bytes32[] proof;
    }

    struct Model {
        bytes32 runId; // zero until the result is final
        bytes32 modelHash;
    }

    /// @dev A million times the first bond, from which on it stays.
    uint8 private constant LEVEL_MAX = 20;

    IRunEscrow public immutable escrow;
    IVerifierSet public immutable verifierSet;
    uint64 public immutable challengeWindow;
    uint64 public immutable resolveWindow;
    uint64 public immutable claimPeriod;
    uint64 public immutable drawDelay;
    uint8 public immutable jurySeats;
    uint96 private immutable _bond;
    address public immutable sink;

    mapping(bytes32 runId => mapping(uint64 epoch => Kept)) private _epochs;
    mapping(bytes32 runId => mapping(uint64 epoch => mapping(uint256 word => uint256 bits))) private _claims;
    mapping(bytes32 runId => mapping(uint64 epoch => Jury)) private _juries;
    /// @notice Challenges of an epoch that have ended; each doubles the next bonds.
    mapping(bytes32 runId => mapping(uint64 epoch => uint8)) private _level;
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
        uint64 windowEndsAt,
        address proposer,
        uint128 bond
    );
    /// @notice A proposed result with its certificate: who signed two of an epoch is found by these events.
    event ResultCertified(bytes32 indexed runId, uint64 indexed epoch, EpochResult result, bytes cert);
    event Challenged(
        bytes32 indexed runId, uint64 indexed epoch, address indexed challenger, bytes32 reasonHash, uint128 bond
    );
    event JuryDrawn(bytes32 indexed runId, uint64 indexed epoch, address[] jury);
    event Voted(bytes32 indexed runId, uint64 indexed epoch, address indexed juror, bool isRight);
    event Resolved(bytes32 indexed runId, uint64 indexed epoch, Outcome outcome, uint64 windowEndsAt);
    event BondReleased(bytes32 indexed runId, uint64 indexed epoch, address indexed account, uint128 amount);
    event BondForfeited(bytes32 indexed runId, uint64 indexed epoch, uint128 amount);
    event BondCollected(address indexed account, uint256 amount);
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
    error WrongResult(bytes32 arrived, bytes32 pending);
    error WindowOver(uint64 endedAt);
    error TooEarly(uint64 readyAt);
    error PreviousNotFinal(uint64 epoch);
    error NotAnOrphan();
    error NothingToClaim();
    error WrongProof(uint256 index);
    error NothingOwed(address who);
    error AboveTotal(uint128 claimed, uint128 total);

    constructor(
        bytes32 deploymentId_,
        IERC20 token_,
        IRunEscrow escrow_,
        IVerifierSet verifierSet_,
        ISlashCourt court,
        Params memory p
    ) Judge("AssayEpochSettlement", deploymentId_) PermitAndCall(token_) {
        if (escrow_.settlement() != address(this) || p.challengeWindow == 0 || p.claimPeriod == 0) revert BadParams();
        // Without time to answer, or with nothing to lose, any challenge would be the end of any result.
        if (p.resolveWindow == 0 || p.bond == 0) revert BadParams();
        if (p.drawDelay == 0 || p.jurySeats < Juries.SEATS_MIN || p.jurySeats > Juries.SEATS_MAX) revert BadParams();
        if (p.sink == address(0) || p.sink == address(this)) revert BadParams(); // coins refuse the one, the books the other
        // Stake must outlive every road that can end in a slash for this epoch's work.
        uint256 slowest = uint256(p.challengeWindow) + p.resolveWindow + court.vetoWindow() + court.executeWindow()
            + court.margin();
        if (court.vault().unbondingDelay() <= slowest) revert BadParams();
        escrow = escrow_;
        verifierSet = verifierSet_;
        challengeWindow = p.challengeWindow;
        resolveWindow = p.resolveWindow;
        claimPeriod = p.claimPeriod;
        drawDelay = p.drawDelay;
        jurySeats = p.jurySeats;
        _bond = p.bond;
        sink = p.sink;
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
        // The weight is not needed: verify reverts below a quorum.
        // slither-disable-next-line unused-return
        (, uint256 signers) = verifierSet.verify(pinned, digest, certType, cert);
        uint128 bond = _keep(e, r, digest, uint64(signers));
        emit ResultCertified(r.runId, r.epoch, r, cert);
        escrow.reserve(r.runId, r.epoch, r.total);
        // After the escrow, because a cap or a budget is the better answer to a total of any size.
        if (r.total > type(uint88).max) revert AboveTotal(r.total, type(uint88).max);
        token.pull(bond);
    }

    /// @notice Challenges a result, with a bond that is lost if the jury finds the result right, and half of it if
    ///         there is no answer.
    function challenge(bytes32 runId, uint64 epoch, bytes32 reasonHash) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.PROPOSED);
        if (block.timestamp >= e.until) revert WindowOver(e.until);
        uint128 bond = bondOf(runId, epoch);
        (e.state, e.until) = (State.CHALLENGED, uint64(block.timestamp) + resolveWindow);
        (e.challenger, e.asked, e.entries) = (msg.sender, uint48(block.number), uint32(verifierSet.entryCount()));
        emit Challenged(runId, epoch, msg.sender, reasonHash, bond);
        token.pull(bond);
    }

    /// @notice Draws the jury of a challenge, by the randomness of this block. Anyone may call, from the first block
    ///         in which it is possible: in one block all callers draw the same jury.
    function drawJury(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.CHALLENGED);
        _juries[runId][epoch].requireDue(e.asked, drawDelay);
        address[] memory jury = verifierSet.draw(
            keccak256(abi.encode(block.prevrandao, runId, epoch, e.digest, _level[runId][epoch])),
            jurySeats,
            e.entries,
            e.asked,
            escrow.setVersionOf(runId),
            e.signers,
            [e.challenger, e.proposer]
        );
        _juries[runId][epoch].seats = jury;
        emit JuryDrawn(runId, epoch, jury);
    }

    /// @notice A juror's answer, with all its seats. More than half of the seats decide.
    /// @param  digest Of the result that the juror judged.
    function vote(bytes32 runId, uint64 epoch, bytes32 digest, bool isRight) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.CHALLENGED);
        if (block.timestamp >= e.until) revert WindowOver(e.until);
        if (digest != e.digest) revert WrongResult(digest, e.digest);
        (uint32 side, bool isDecided) = _juries[runId][epoch].cast(msg.sender, isRight);
        emit Voted(runId, epoch, msg.sender, isRight);
        if (isDecided) _decide(runId, epoch, e, isRight, side);
    }

    /// @notice Ends a challenge that no jury answered in time: the result stands again, for a new window. Half of the
    ///         bond returns. Anyone may call.
    function timeoutChallenge(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.CHALLENGED);
        if (block.timestamp < e.until) revert TooEarly(e.until);
        (address challenger, uint128 bond) = (e.challenger, bondOf(runId, epoch));
        _reopen(runId, epoch, e, Outcome.LAPSED);
        _owe(runId, epoch, challenger, bond / 2);
        _forfeit(runId, epoch, bond - bond / 2);
    }

    /// @notice Clears a result whose predecessor is gone; the bonds are free. Anyone may call.
    function clearOrphan(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _epochs[runId][epoch];
        if (e.state != State.PROPOSED && e.state != State.CHALLENGED) revert WrongState(e.state);
        if (e.lost == 0) revert NotAnOrphan();
        if (e.state == State.CHALLENGED) _owe(runId, epoch, e.challenger, bondOf(runId, epoch));
        _owe(runId, epoch, e.proposer, _bondAt(e.level));
        _remove(runId, epoch, e);
    }

    /// @notice Makes a result final after its window, in the order of epochs. Anyone may call.
    function finalize(bytes32 runId, uint64 epoch) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.PROPOSED);
        if (block.timestamp < e.until) revert TooEarly(e.until);
        if (epoch != 0 && (_epochs[runId][epoch - 1].state < State.FINAL || e.lost != 0)) {
            revert PreviousNotFinal(epoch - 1);
        }
        e.state = State.FINAL;
        e.until = uint64(block.timestamp) + claimPeriod;
        _models[e.digest].runId = runId;
        emit ResultFinalized(runId, epoch, e.digest, e.total, e.until);
        _owe(runId, epoch, e.proposer, _bondAt(e.level));
        escrow.settle(runId, epoch);
    }

    // ---- money out

    /// @notice Pays rows of one table, each to the account it names; anyone may send them. A row that is paid already is
    ///         passed over, so that nobody can stop the others by claiming one.
    function claim(bytes32 runId, uint64 epoch, Row[] calldata rows) external nonReentrant {
        Kept storage e = _in(runId, epoch, State.FINAL);
        (bytes32 root, uint88 total, uint88 claimed) = (e.root, e.total, e.claimed);
        address[] memory accounts = new address[](rows.length);
        uint128[] memory amounts = new uint128[](rows.length); // zero, which nothing is sent for, for the others
        uint256 found = 0;
        for (uint256 i = 0; i < rows.length; i++) {
            Row calldata row = rows[i];
            if (!_take(runId, epoch, root, row)) continue;
            // The root is a claim of the verifiers; the total is what they signed for. Never pay above it.
            if (row.amount > total - claimed) revert AboveTotal(claimed + row.amount, total);
            claimed += uint88(row.amount);
            (accounts[found], amounts[found]) = (row.account, row.amount);
            found++;
        }
        if (found == 0) revert NothingToClaim();
        e.claimed = claimed;
        escrow.pay(runId, accounts, amounts);
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

    /// @notice Pays out returned bonds and jurors' fees to the account `who`. Anyone may call.
    function collectBond(address who) external nonReentrant {
        uint256 amount = bondsOwed[who];
        if (amount == 0) revert NothingOwed(who);
        bondsOwed[who] = 0;
        emit BondCollected(who, amount);
        token.push(escrow.payeeOf(who), amount);
    }

    // ---- reads

    function getEpoch(bytes32 runId, uint64 epoch) external view returns (Epoch memory) {
        Kept storage e = _epochs[runId][epoch];
        bytes32 previous = e.lost;
        if (e.state != State.NONE && epoch != 0 && previous == 0) previous = _epochs[runId][epoch - 1].digest;
        bytes32 modelHash = _models[e.digest].modelHash;
        Jury storage jury = _juries[runId][epoch];
        bool isDrawn = e.state != State.CHALLENGED || jury.seats.length != 0;
        return Epoch({
            state: e.state,
            until: e.until,
            total: e.total,
            claimed: e.claimed,
            challenger: e.challenger,
            digest: e.digest,
            prevResult: previous,
            root: e.root,
            modelHash: modelHash,
            proposer: e.proposer,
            bond: bondOf(runId, epoch),
            drawFrom: isDrawn ? 0 : e.asked + drawDelay,
            jury: jury.seats,
            voted: jury.right | jury.wrong
        });
    }

    /// @notice What the next challenge or proposal for an epoch puts up; of an open challenge, what it put up.
    function bondOf(bytes32 runId, uint64 epoch) public view returns (uint128) {
        return _bondAt(_level[runId][epoch]);
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

    // ---- inside

    function _in(bytes32 runId, uint64 epoch, State state) private view returns (Kept storage e) {
        e = _epochs[runId][epoch];
        if (e.state != state) revert WrongState(e.state);
    }

    /// @dev A new result, with the bond of the next challenge or proposal.
    function _keep(Kept storage e, EpochResult calldata r, bytes32 digest, uint64 signers)
        private
        returns (uint128 bond)
    {
        uint64 until = uint64(block.timestamp) + challengeWindow;
        bond = bondOf(r.runId, r.epoch);
        (e.state, e.until, e.total) = (State.PROPOSED, until, uint88(r.total)); // all else of NONE is zero
        (e.proposer, e.level, e.signers) = (msg.sender, _level[r.runId][r.epoch], signers);
        (e.digest, e.root) = (digest, r.root);
        _models[digest].modelHash = r.modelHash;
        // What was built on it is no orphan any more.
        Kept storage next = _epochs[r.runId][r.epoch + 1];
        if (next.lost == digest) next.lost = 0;
        emit ResultProposed(
            r.runId, r.epoch, digest, r.root, r.tableHash, r.modelHash, r.total, until, msg.sender, bond
        );
    }

    /// @dev Marks a row as paid; false if it is already.
    function _take(bytes32 runId, uint64 epoch, bytes32 root, Row calldata row) private returns (bool) {
        (uint256 index, address account, uint128 amount) = (row.index, row.account, row.amount);
        if (isClaimed(runId, epoch, index)) return false;
        if (!MerkleProof.verifyCalldata(row.proof, root, leafOf(runId, epoch, index, account, amount))) {
            revert WrongProof(index);
        }
        _claims[runId][epoch][index >> 8] |= 1 << (index & 255);
        emit Claimed(runId, epoch, index, account, amount);
        return true;
    }

    function _bondAt(uint8 level) private view returns (uint128) {
        return uint128(_bond) << level;
    }

    /// @dev The bond of the side that was wrong: one half to the other side, one to the seats that decided.
    // Called by vote alone, which is guarded, as is everything else here that changes state: whoever the
    // token calls in between can only read.
    // slither-disable-next-line reentrancy-no-eth
    function _decide(bytes32 runId, uint64 epoch, Kept storage e, bool isRight, uint32 side) private {
        (address challenger, address proposer) = (e.challenger, e.proposer);
        (uint128 asked, uint128 put) = (bondOf(runId, epoch), _bondAt(e.level));
        uint128 lost = isRight ? asked : put;
        address[] memory winners = _juries[runId][epoch].accountsOf(side);
        uint128 fee = uint128(lost / 2 / winners.length);
        uint128 spent = 0;
        for (uint256 k = 0; k < winners.length; k++) {
            _owe(runId, epoch, winners[k], fee);
            spent += fee;
        }
        _owe(runId, epoch, isRight ? proposer : challenger, lost / 2);
        _forfeit(runId, epoch, lost - lost / 2 - spent);
        if (isRight) {
            _reopen(runId, epoch, e, Outcome.UPHELD);
        } else {
            _owe(runId, epoch, challenger, asked);
            _endChallenge(runId, epoch);
            emit Resolved(runId, epoch, Outcome.REJECTED, 0);
            _remove(runId, epoch, e);
        }
    }

    function _reopen(bytes32 runId, uint64 epoch, Kept storage e, Outcome outcome) private {
        uint64 until = uint64(block.timestamp) + challengeWindow;
        (e.state, e.until, e.challenger) = (State.PROPOSED, until, address(0));
        _endChallenge(runId, epoch);
        emit Resolved(runId, epoch, outcome, until);
    }

    function _endChallenge(bytes32 runId, uint64 epoch) private {
        delete _juries[runId][epoch];
        if (_level[runId][epoch] < LEVEL_MAX) _level[runId][epoch] += 1;
    }

    function _owe(bytes32 runId, uint64 epoch, address who, uint128 amount) private {
        bondsOwed[who] += amount;
        emit BondReleased(runId, epoch, who, amount);
    }

    function _forfeit(bytes32 runId, uint64 epoch, uint128 amount) private {
        emit BondForfeited(runId, epoch, amount);
        token.push(sink, amount);
    }

    function _remove(bytes32 runId, uint64 epoch, Kept storage e) private {
        (bytes32 digest, uint128 total) = (e.digest, e.total);
        delete _epochs[runId][epoch];
        delete _juries[runId][epoch];
        delete _models[digest];
        // What was built on it keeps its name; an orphan already keeps the name it has.
        Kept storage next = _epochs[runId][epoch + 1];
        if (next.state != State.NONE && next.lost == 0) next.lost = digest;
        emit ResultRejected(runId, epoch, digest, total);
        escrow.release(runId, total, uint64(block.timestamp) + challengeWindow);
    }
}
