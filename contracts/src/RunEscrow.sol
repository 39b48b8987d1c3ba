// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {Guarded} from "./Guarded.sol";
import {IStakeVault, IVerifierSet} from "./Interfaces.sol";
import {PermitAndCall} from "./PermitAndCall.sol";
import {Tokens} from "./Tokens.sol";

/// @title A buyer's money for one run: held here, reserved per epoch, paid by claims, the rest returned.
/// @notice budget == reserved + paid + returned + free, at every moment and for every run.
///         A run takes results until `closesAt`: its deadline, or earlier the close delay after the
///         buyer asked to stop, or when its last epoch is final. Then anyone may send the free rest back to the buyer, so money never sticks.
contract RunEscrow is Guarded, PermitAndCall {
    using Tokens for IERC20;

    struct Run {
        address buyer;
        uint32 epochs;
        uint32 setVersion;
        uint32 pending; // results neither final nor rejected
        uint64 deadline;
        uint64 closesAt;
        uint128 budget;
        uint128 epochCap;
        uint128 reserved;
        uint128 paid;
        uint128 returned;
        bytes32 specHash;
        bool holds; // the lots of its verifier set, until a refund ends it
        uint128 lot;
    }

    /// @dev A Run as it is stored: the fields that a claim changes share one storage word.
    struct Kept {
        address buyer;
        uint32 epochs;
        uint32 setVersion;
        uint24 pending;
        bool holds; // its set's lots: from the opening to the refund
        uint64 deadline;
        uint64 closesAt;
        uint128 budget;
        uint128 epochCap;
        uint128 returned;
        uint128 reserved;
        uint128 paid;
        bytes32 specHash;
        uint128 lot; // of each operator, token units
    }

    /// @notice The longest run: a lost buyer's key, or verifiers that left, cannot lock the money for longer.
    uint64 public constant RUN_SECONDS_MAX = 366 days;
    uint8 private constant OPERATOR = 0;

    bytes32 public immutable deploymentId;
    IVerifierSet public immutable verifierSet;
    IStakeVault public immutable vault;
    address public immutable settlement;
    uint64 public immutable closeDelay;

    mapping(bytes32 runId => Kept) private _runs;
    /// @notice Runs of a set which no refund has ended.
    mapping(uint32 setVersion => uint256 count) public heldBy;
    mapping(uint32 setVersion => uint64 time) private _lastEnd; // of a run of the set
    mapping(address account => address payee) private _payees; // zero: the account itself

    event RunOpened(
        bytes32 indexed runId,
        address indexed buyer,
        bytes32 specHash,
        uint128 budget,
        uint128 epochCap,
        uint32 epochs,
        uint64 deadline,
        uint32 setVersion
    );
    event RunToppedUp(bytes32 indexed runId, address indexed payer, uint128 amount);
    event RunClosing(bytes32 indexed runId, uint64 closesAt);
    event Reserved(bytes32 indexed runId, uint64 epoch, uint128 total);
    event Released(bytes32 indexed runId, uint128 total);
    event PayeeNamed(address indexed account, address indexed payee);
    event Refunded(bytes32 indexed runId, address indexed buyer, uint128 amount);

    error OnlySettlement();
    error OnlyBuyer();
    error RunExists(bytes32 runId);
    error UnknownRun(bytes32 runId);
    error BadRun();
    error NoLot(address operator, uint256 amount, uint64 until);
    error RunClosed(uint64 closesAt);
    error AlreadyClosing(uint64 closesAt);
    error NotClosed(uint64 closesAt);
    error ResultsPending(uint32 pending);
    error NothingToRefund();
    error EpochOutOfRange(uint64 epoch, uint32 epochs);
    error AboveEpochCap(uint128 total, uint128 epochCap);
    error AboveBudget(uint128 total, uint128 free);

    modifier onlySettlement() {
        if (msg.sender != settlement) revert OnlySettlement();
        _;
    }

    constructor(
        bytes32 deploymentId_,
        IERC20 token_,
        IVerifierSet verifierSet_,
        address settlement_,
        uint64 closeDelay_
    ) PermitAndCall(token_) {
        if (settlement_ == address(0)) revert BadRun();
        deploymentId = deploymentId_;
        verifierSet = verifierSet_;
        vault = verifierSet_.vault();
        settlement = settlement_;
        closeDelay = closeDelay_;
    }

    // ---- everybody's own move

    /// @notice Names the address that gets what the three vaults pay out to the caller from now on: rows, refunds, bonds,
    ///         rewards and stake. Zero: the caller itself. A coin that blocks an account takes nothing from it.
    function namePayee(address payee) external {
        _payees[msg.sender] = payee;
        emit PayeeNamed(msg.sender, payee);
    }

    // ---- the buyer's moves

    /// @notice Opens a run and pulls its budget. One buyer opens one specification once.
    /// @param lot What each operator has at stake in this run alone, and nowhere else: each has locked it itself before.
    /// @param operators The accounts of the run's nodes, ascending.
    function openRun(
        bytes32 specHash,
        uint128 budget,
        uint128 epochCap,
        uint32 epochs,
        uint64 deadline,
        uint32 setVersion,
        uint128 lot,
        address[] calldata operators
    ) external nonReentrant returns (bytes32 runId) {
        runId = runIdOf(msg.sender, specHash);
        if (_runs[runId].buyer != address(0)) revert RunExists(runId);
        if (budget == 0 || epochCap == 0 || epochs == 0 || deadline < block.timestamp + closeDelay) revert BadRun();
        if (deadline > block.timestamp + RUN_SECONDS_MAX || lot < vault.minStake(OPERATOR)) revert BadRun();
        // Members of older sets may have left with their stake; they judge what they began and nothing new.
        if (setVersion != verifierSet.currentVersion()) revert BadRun();
        verifierSet.requireStaked(deadline);
        _requireLots(runId, lot, operators, deadline);
        _runs[runId] =
            Kept(msg.sender, epochs, setVersion, 0, true, deadline, deadline, budget, epochCap, 0, 0, 0, specHash, lot);
        heldBy[setVersion] += 1;
        emit RunOpened(runId, msg.sender, specHash, budget, epochCap, epochs, deadline, setVersion);
        token.pull(budget);
    }

    /// @notice Adds to the budget; anyone may, and no timer moves.
    function topUp(bytes32 runId, uint128 amount) external nonReentrant {
        Kept storage run = _known(runId);
        if (amount == 0) revert BadRun();
        if (block.timestamp >= run.closesAt) revert RunClosed(run.closesAt);
        run.budget += amount;
        emit RunToppedUp(runId, msg.sender, amount);
        token.pull(amount);
    }

    /// @notice Asks to stop. Results for work already done are taken until the close delay is over.
    function requestClose(bytes32 runId) external {
        Kept storage run = _known(runId);
        if (msg.sender != run.buyer) revert OnlyBuyer();
        uint64 closesAt = uint64(block.timestamp) + closeDelay;
        if (closesAt >= run.closesAt) revert AlreadyClosing(run.closesAt);
        run.closesAt = closesAt;
        emit RunClosing(runId, closesAt);
    }

    /// @notice Ends a closed run: sends the free rest to its buyer, and its set's lots wait for it no more. Anyone may call.
    function refund(bytes32 runId) external nonReentrant {
        Kept storage run = _known(runId);
        if (block.timestamp < run.closesAt) revert NotClosed(run.closesAt);
        if (run.pending != 0) revert ResultsPending(run.pending);
        uint128 amount = _free(run);
        if (amount == 0 && !run.holds) revert NothingToRefund();
        if (run.holds) {
            run.holds = false;
            heldBy[run.setVersion] -= 1;
            _lastEnd[run.setVersion] = uint64(block.timestamp);
        }
        run.returned += amount;
        emit Refunded(runId, run.buyer, amount);
        token.push(payeeOf(run.buyer), amount);
    }

    // ---- the settlement's moves

    function reserve(bytes32 runId, uint64 epoch, uint128 total) external onlySettlement {
        Kept storage run = _known(runId);
        if (block.timestamp >= run.closesAt) revert RunClosed(run.closesAt);
        if (epoch >= run.epochs) revert EpochOutOfRange(epoch, run.epochs);
        if (total > run.epochCap) revert AboveEpochCap(total, run.epochCap);
        uint128 free = _free(run);
        if (total > free) revert AboveBudget(total, free);
        run.reserved += total;
        run.pending += 1;
        emit Reserved(runId, epoch, total);
    }

    /// @notice A result fell. The run stays open until `openUntil` at least, so that the epoch can be proposed again.
    function release(bytes32 runId, uint128 total, uint64 openUntil) external onlySettlement {
        Kept storage run = _known(runId);
        run.reserved -= total;
        run.pending -= 1;
        emit Released(runId, total);
        if (openUntil > run.closesAt) {
            run.closesAt = openUntil;
            emit RunClosing(runId, openUntil);
        }
    }

    /// @notice One result is final. Results become final in the order of epochs: after the last one nothing
    ///         can come, so the run closes at once.
    function settle(bytes32 runId, uint64 epoch) external onlySettlement {
        Kept storage run = _known(runId);
        run.pending -= 1;
        if (epoch + 1 == run.epochs && block.timestamp < run.closesAt) {
            run.closesAt = uint64(block.timestamp);
            emit RunClosing(runId, run.closesAt);
        }
    }

    function pay(bytes32 runId, address[] calldata accounts, uint128[] calldata amounts)
        external
        onlySettlement
        nonReentrant
    {
        Kept storage run = _runs[runId]; // a run that was never opened has nothing reserved
        uint128 sum = 0;
        for (uint256 i = 0; i < amounts.length; i++) {
            sum += amounts[i];
        }
        run.reserved -= sum;
        run.paid += sum;
        for (uint256 i = 0; i < amounts.length; i++) {
            token.push(payeeOf(accounts[i]), amounts[i]);
        }
    }

    function returnUnclaimed(bytes32 runId, uint128 amount) external onlySettlement nonReentrant {
        Kept storage run = _known(runId);
        run.reserved -= amount;
        run.returned += amount;
        token.push(payeeOf(run.buyer), amount);
    }

    // ---- reads

    /// @notice Where money of this account goes.
    function payeeOf(address account) public view returns (address payee) {
        payee = _payees[account];
        if (payee == address(0)) payee = account;
    }

    function runIdOf(address buyer, bytes32 specHash) public view returns (bytes32) {
        return keccak256(abi.encode(deploymentId, buyer, specHash));
    }

    function getRun(bytes32 runId) external view returns (Run memory) {
        Kept storage k = _runs[runId];
        return Run({
            buyer: k.buyer,
            epochs: k.epochs,
            setVersion: k.setVersion,
            pending: k.pending,
            deadline: k.deadline,
            closesAt: k.closesAt,
            budget: k.budget,
            epochCap: k.epochCap,
            reserved: k.reserved,
            paid: k.paid,
            returned: k.returned,
            specHash: k.specHash,
            holds: k.holds,
            lot: k.lot
        });
    }

    /// @notice When a commitment of stake was over: its run, or all runs of its verifier set. Zero if it has not begun,
    ///         the end of time if nobody can say yet. What was said once as a time in the past never changes.
    function endOf(uint8 role, bytes32 commitment) external view returns (uint64) {
        if (role == OPERATOR) {
            Kept storage run = _runs[commitment];
            return run.pending != 0 ? type(uint64).max : run.closesAt;
        }
        uint32 version = uint32(uint256(commitment));
        uint32 current = verifierSet.currentVersion();
        if (version > current) return 0;
        return version == current || heldBy[version] != 0 ? type(uint64).max : _lastEnd[version];
    }

    function buyerOf(bytes32 runId) external view returns (address) {
        return _runs[runId].buyer;
    }

    function setVersionOf(bytes32 runId) external view returns (uint32) {
        return _known(runId).setVersion;
    }

    function closesAtOf(bytes32 runId) external view returns (uint64) {
        return _known(runId).closesAt;
    }

    // ---- inside

    /// @dev The buyer pays for the length of its list. The vault is one of ours: no call to it can be made to fail.
    function _requireLots(bytes32 runId, uint128 lot, address[] calldata operators, uint64 deadline) private view {
        address last = address(0);
        for (uint256 i = 0; i < operators.length; i++) {
            address operator = operators[i];
            if (operator <= last) revert BadRun();
            last = operator;
            // The cases against it, the third value, are none before the run is opened.
            // slither-disable-next-line unused-return,calls-loop
            (uint256 amount, uint64 until,) = vault.lotOf(operator, OPERATOR, runId);
            if (amount < lot || until < deadline) revert NoLot(operator, amount, until);
        }
    }

    function _known(bytes32 runId) private view returns (Kept storage run) {
        run = _runs[runId];
        if (run.buyer == address(0)) revert UnknownRun(runId);
    }

    function _free(Kept storage run) private view returns (uint128) {
        return run.budget - run.reserved - run.paid - run.returned;
    }
}
