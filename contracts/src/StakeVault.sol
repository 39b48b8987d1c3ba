// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {Guarded} from "./Guarded.sol";
import {IRunEscrow} from "./Interfaces.sol";
import {Delegation, Judge, PeerBinding, Statements} from "./Statements.sol";
import {IBurnableToken, Tokens} from "./Tokens.sol";

/// @title Stake of operators and verifiers, as shares of one pool per (account, role).
/// @notice A slash takes tokens out of the pool and leaves the shares alone, so active and leaving stake
///         lose the same fraction, matured tickets included, until the moment they are withdrawn.
///         What a case takes waits in a pot, from which it is paid out, or goes back into the pool.
/// @dev    Only the slash court can slash or freeze; there is no pause. Rounding: a slash rounds up, a
///         withdrawal down; whoever withdraws the last shares takes the dust.
contract StakeVault is Judge, Guarded {
    using Tokens for IBurnableToken;
    using Statements for Delegation;
    using Statements for PeerBinding;

    uint8 public constant OPERATOR = 0;
    uint8 public constant VERIFIER = 1;
    uint256 public constant PPM = 1_000_000;
    /// @dev At least a fifth of every slash is burnt, so that offender, buyer and accuser
    ///      in one hand still lose money.
    uint256 public constant BUYER_PPM_MAX = 500_000;
    uint256 public constant FEE_PPM_MAX = 300_000;

    struct Params {
        uint64 unbondingDelay; // seconds
        uint64 freezeMax; // seconds a case may hold withdrawals
        uint256 minOperatorStake; // token units
        uint256 minVerifierStake; // token units
        uint256 buyerPpm; // of a slash by order; of an equivocation the buyer gets nothing
        uint256 accuserFee; // token units, whatever was slashed: accusing pays its cost and no more
    }

    struct Pool {
        uint256 tokens; // active and leaving together
        uint256 shares; // active and leaving together
        uint256 activeShares;
        uint64 generation; // counts the times a slash emptied the pool
    }

    struct Ticket {
        address who;
        uint8 role;
        uint64 generation;
        uint64 readyAt;
        uint256 shares; // zero once withdrawn or cancelled
    }

    /// @dev What a case took, until it is paid out or restored.
    struct Pot {
        address who; // stays for ever: one offence, one slash
        uint8 role;
        bool isOpen;
        uint256 amount;
        address buyer;
        address challenger;
    }

    struct Bond {
        address who;
        uint96 amount; // zero once returned or burnt
    }

    struct Hold {
        uint64 until; // the latest end of the cases counted
        uint32 count; // open cases
    }

    struct HotKey {
        address account;
        uint64 expiry;
    }

    IBurnableToken public immutable token;
    address public immutable court;
    IRunEscrow public immutable escrow;
    uint64 public immutable unbondingDelay;
    uint64 public immutable freezeMax;
    uint256 public immutable buyerPpm;
    uint256 public immutable accuserFee;
    uint256 private immutable _minOperatorStake;
    uint256 private immutable _minVerifierStake;

    mapping(address who => mapping(uint8 role => Pool)) private _pools;
    mapping(uint256 id => Ticket) public tickets;
    mapping(address hotKey => HotKey) public hotKeys;
    mapping(address who => Hold) private _holds;
    /// @notice Accounts that contradicted themselves; they lose everything once and never stake again.
    mapping(address who => bool) public banned;
    mapping(bytes32 offenceId => Pot) public pots;
    mapping(bytes32 caseId => Bond) public bonds;
    /// @notice Slash shares waiting to be collected; pull, so that no payee can block a slash.
    mapping(address who => uint256 amount) public rewards;
    uint256 public rewardsTotal;
    uint256 public potsTotal;
    uint256 public bondsTotal;
    uint256 public ticketCount;

    event Staked(address indexed account, uint8 role, uint256 amount);
    event UnstakeRequested(address indexed account, uint8 role, uint256 ticket, uint256 amount, uint64 readyAt);
    event UnstakeCancelled(address indexed account, uint8 role, uint256 ticket, uint256 amount);
    event Withdrawn(address indexed account, uint8 role, uint256 ticket, uint256 amount);
    /// @dev `payableAt` zero: burnt and booked at once. Else nothing is, before SlashPaid or SlashReversed.
    event Slashed(
        address indexed account,
        uint8 role,
        bytes32 indexed offenceId,
        uint256 amount,
        uint256 burnt,
        address buyer,
        uint256 buyerAmount,
        address challenger,
        uint256 challengerAmount,
        uint64 payableAt
    );
    event SlashPaid(
        address indexed account,
        uint8 role,
        bytes32 indexed offenceId,
        uint256 burnt,
        address buyer,
        uint256 buyerAmount,
        address challenger,
        uint256 challengerAmount
    );
    event SlashReversed(address indexed account, uint8 role, bytes32 indexed offenceId, uint256 amount);
    event BondLocked(bytes32 indexed caseId, address indexed account, uint256 amount);
    event BondReturned(bytes32 indexed caseId, address indexed account, uint256 amount);
    event BondBurnt(bytes32 indexed caseId, address indexed account, uint256 amount);
    event RewardCollected(address indexed account, uint256 amount);
    event HotKeyDelegated(address indexed account, address indexed hotKey, uint64 expiry);
    event Frozen(address indexed account, uint64 until);
    event Unfrozen(address indexed account, uint32 casesLeft);

    error OnlyCourt();
    error UnknownRole(uint8 role);
    error BadParams();
    error ZeroAmount();
    error BelowMinimum(uint256 left, uint256 minimum);
    error NotEnoughStake(uint256 active, uint256 asked);
    error NotYourTicket(uint256 ticket);
    error TicketSpent(uint256 ticket);
    error TooEarly(uint64 readyAt);
    error AccountFrozen(uint64 until);
    error FreezeTooLong(uint64 until);
    error HotKeyTaken(address account);
    error BadConsent(address signer);
    error AlreadySlashed(bytes32 offenceId);
    error NoOpenPot(bytes32 offenceId);
    error BondTaken(bytes32 caseId);
    error NoBond(bytes32 caseId);
    error NotHeld(address who);
    error AccountBanned(address who);
    error StakeHeld(address who);

    modifier onlyCourt() {
        if (msg.sender != court) revert OnlyCourt();
        _;
    }

    constructor(bytes32 deploymentId_, IBurnableToken token_, address court_, IRunEscrow escrow_, Params memory p)
        Judge("AssayStakeVault", deploymentId_)
    {
        if (p.buyerPpm > BUYER_PPM_MAX) revert BadParams();
        if (p.minOperatorStake == 0 || p.minVerifierStake == 0 || court_ == address(0)) revert BadParams();
        token = token_;
        court = court_;
        escrow = escrow_;
        unbondingDelay = p.unbondingDelay;
        freezeMax = p.freezeMax;
        buyerPpm = p.buyerPpm;
        accuserFee = p.accuserFee;
        _minOperatorStake = p.minOperatorStake;
        _minVerifierStake = p.minVerifierStake;
    }

    // ---- the account's own moves

    function stake(uint8 role, uint256 amount) external nonReentrant {
        uint256 minimum = minStake(role);
        if (amount == 0) revert ZeroAmount();
        if (banned[msg.sender]) revert AccountBanned(msg.sender);
        Pool storage pool = _pools[msg.sender][role];
        _deposit(pool, amount);
        uint256 active = _value(pool, pool.activeShares);
        if (active < minimum) revert BelowMinimum(active, minimum);
        emit Staked(msg.sender, role, amount);
        token.pull(amount);
    }

    /// @notice Starts to leave with `amount` of active stake; what stays is nothing or at least the minimum.
    function requestUnstake(uint8 role, uint256 amount) external nonReentrant returns (uint256 ticket) {
        uint256 minimum = minStake(role);
        if (amount == 0) revert ZeroAmount();
        Pool storage pool = _pools[msg.sender][role];
        uint256 active = _value(pool, pool.activeShares);
        if (amount > active) revert NotEnoughStake(active, amount);
        uint256 left = active - amount;
        if (left != 0 && left < minimum) revert BelowMinimum(left, minimum);
        _requireFree(role, left, minimum);
        // Whoever asks for everything gives all shares, dust included; a gift of tokens moves no book of ours.
        // slither-disable-next-line incorrect-equality
        uint256 shares =
            left == 0 ? pool.activeShares : Math.mulDiv(amount, pool.shares, pool.tokens, Math.Rounding.Ceil);
        pool.activeShares -= shares;
        uint64 readyAt = uint64(block.timestamp) + unbondingDelay;
        ticket = ++ticketCount;
        tickets[ticket] = Ticket(msg.sender, role, pool.generation, readyAt, shares);
        emit UnstakeRequested(msg.sender, role, ticket, amount, readyAt);
    }

    function cancelUnstake(uint256 ticket) external nonReentrant {
        (Ticket memory t, Pool storage pool, uint256 amount) = _spend(ticket);
        // A count of emptied pools, which only a slash moves.
        // slither-disable-next-line incorrect-equality
        if (t.generation == pool.generation) pool.activeShares += t.shares;
        emit UnstakeCancelled(msg.sender, t.role, ticket, amount);
    }

    function withdraw(uint256 ticket) external nonReentrant {
        (Ticket memory t, Pool storage pool, uint256 amount) = _spend(ticket);
        if (block.timestamp < t.readyAt) revert TooEarly(t.readyAt);
        uint64 held = frozenUntil(msg.sender);
        if (block.timestamp < held) revert AccountFrozen(held);
        // A ticket may be older than what its owner signed since.
        Pool storage active = _pools[msg.sender][t.role];
        _requireFree(t.role, _value(active, active.activeShares), minStake(t.role));
        // As in cancelUnstake.
        // slither-disable-next-line incorrect-equality
        if (t.generation == pool.generation) {
            pool.shares -= t.shares;
            pool.tokens -= amount;
        }
        emit Withdrawn(msg.sender, t.role, ticket, amount);
        token.push(msg.sender, amount);
    }

    /// @notice Lets `hotKey` sign for the caller. A hot key is bound to its account for ever, so that no
    ///         account escapes an old offence by delegating again; `consent` is the hot key's own
    ///         signature, so that no account claims another's key.
    function delegate(address hotKey, uint64 expiry, bytes calldata consent) external {
        address owner = hotKeys[hotKey].account;
        if (owner != address(0) && owner != msg.sender) revert HotKeyTaken(owner);
        address signer = ECDSA.recover(delegationDigest(msg.sender, hotKey, expiry), consent);
        if (signer != hotKey) revert BadConsent(signer);
        hotKeys[hotKey] = HotKey(msg.sender, expiry);
        emit HotKeyDelegated(msg.sender, hotKey, expiry);
    }

    /// @notice Pays out slash shares and returned bonds to the account `who`. Anyone may call.
    function collect(address who) external nonReentrant {
        uint256 amount = rewards[who];
        if (amount == 0) revert ZeroAmount();
        rewards[who] = 0;
        rewardsTotal -= amount;
        emit RewardCollected(who, amount);
        token.push(who, amount);
    }

    // ---- the court's moves

    /// @notice Moves a share of active and leaving stake into a pot, where it waits to be paid out or restored.
    /// @return amount What was taken: the ceiling of ppm of active and leaving stake together.
    function slash(
        address who,
        uint8 role,
        uint256 ppm,
        bytes32 offenceId,
        address buyer,
        address challenger,
        uint64 payableAt
    ) external onlyCourt nonReentrant returns (uint256 amount) {
        if (role > VERIFIER) revert UnknownRole(role);
        if (ppm > PPM || payableAt == 0) revert BadParams();
        if (pots[offenceId].who != address(0)) revert AlreadySlashed(offenceId);
        amount = _draw(who, role, ppm);
        pots[offenceId] = Pot(who, role, true, amount, buyer, challenger);
        potsTotal += amount;
        (uint256 toBuyer, uint256 toChallenger) = _shares(who, amount, buyer, challenger);
        uint256 burnt = amount - toBuyer - toChallenger;
        emit Slashed(
            who, role, offenceId, amount, burnt, buyer, toBuyer, challenger, toChallenger, payableAt
        );
    }

    /// @notice Ends a slash for good: its shares may be collected, the rest burns.
    function payOut(bytes32 offenceId) external onlyCourt nonReentrant {
        Pot memory pot = _closed(offenceId);
        (uint256 toBuyer, uint256 toChallenger) = _shares(pot.who, pot.amount, pot.buyer, pot.challenger);
        uint256 burnt = pot.amount - toBuyer - toChallenger;
        _credit(pot.buyer, toBuyer);
        _credit(pot.challenger, toChallenger);
        emit SlashPaid(
            pot.who, pot.role, offenceId, burnt, pot.buyer, toBuyer, pot.challenger, toChallenger
        );
        token.destroy(burnt);
    }

    /// @notice Undoes a slash: the pot goes back to active and leaving stake alike; to active stake alone if so much
    ///         has left since that a share would be worth more than the token that once paid for it.
    /// @dev    All shares of a pool are one account's, so no other account gains. An account that was banned since
    ///         gets nothing back. A pool never has more tokens than shares: else rounding would cost more than a unit.
    function restore(bytes32 offenceId) external onlyCourt nonReentrant {
        Pot memory pot = _closed(offenceId);
        if (banned[pot.who]) revert AccountBanned(pot.who);
        Pool storage pool = _pools[pot.who][pot.role];
        if (pool.tokens + pot.amount <= pool.shares) pool.tokens += pot.amount;
        else _deposit(pool, pot.amount);
        emit SlashReversed(pot.who, pot.role, offenceId, pot.amount);
    }

    /// @notice Takes the whole stake in every role at once and bans the account from staking for ever. Otherwise
    ///         an offence reported while the stake was small could be repeated without loss when it is large.
    /// @dev   No buyer is paid: who reports itself in a run of its own would have a share back. The fee is paid once.
    function bar(address who, bytes32 offenceId, address reporter) external onlyCourt nonReentrant {
        if (banned[who]) revert AccountBanned(who);
        banned[who] = true;
        (uint256 burnt, bool isPaid) = _take(who, OPERATOR, offenceId, reporter);
        (uint256 more,) = _take(who, VERIFIER, offenceId, isPaid ? address(0) : reporter);
        token.destroy(burnt + more);
    }

    /// @notice Holds withdrawals while a case is open; bounded in time even if the case is never ended.
    function freeze(address who, uint64 until) external onlyCourt {
        if (until > block.timestamp + freezeMax) revert FreezeTooLong(until);
        Hold storage hold = _holds[who];
        hold.count += 1;
        if (until > hold.until) hold.until = until;
        emit Frozen(who, hold.until);
    }

    /// @notice A case has ended; with the last one the account's stake is free again.
    function unfreeze(address who) external onlyCourt {
        Hold storage hold = _holds[who];
        if (hold.count == 0) revert NotHeld(who);
        hold.count -= 1;
        if (hold.count == 0) hold.until = 0;
        emit Unfrozen(who, hold.count);
    }

    /// @notice Books a bond whose tokens the court sent here just before.
    function lockBond(bytes32 caseId, address who, uint128 amount) external onlyCourt {
        if (bonds[caseId].amount != 0) revert BondTaken(caseId);
        bonds[caseId] = Bond(who, SafeCast.toUint96(amount));
        bondsTotal += amount;
        emit BondLocked(caseId, who, amount);
    }

    /// @notice Credits a case's bond to the account that put it up.
    function returnBond(bytes32 caseId) external onlyCourt {
        (address who, uint256 amount) = _unlocked(caseId);
        _credit(who, amount);
        emit BondReturned(caseId, who, amount);
    }

    function burnBond(bytes32 caseId) external onlyCourt nonReentrant {
        (address who, uint256 amount) = _unlocked(caseId);
        emit BondBurnt(caseId, who, amount);
        token.destroy(amount);
    }

    // ---- reads

    function minStake(uint8 role) public view returns (uint256) {
        if (role > VERIFIER) revert UnknownRole(role);
        // One of two roles, checked above: equal is what is meant.
        // slither-disable-next-line incorrect-equality
        return role == OPERATOR ? _minOperatorStake : _minVerifierStake;
    }

    /// @notice When withdrawals are free again at the latest; zero when no case is open.
    function frozenUntil(address who) public view returns (uint64) {
        return _holds[who].until;
    }

    function stakeOf(address who, uint8 role) external view returns (uint256 active, uint256 unbonding) {
        Pool storage pool = _pools[who][role];
        active = _value(pool, pool.activeShares);
        unbonding = pool.tokens - active;
    }

    /// @notice What a ticket would pay now; zero when it is spent or its pool was slashed to nothing.
    function ticketValue(uint256 ticket) external view returns (uint256) {
        Ticket storage t = tickets[ticket];
        Pool storage pool = _pools[t.who][t.role];
        return t.generation == pool.generation ? _value(pool, t.shares) : 0;
    }

    function accountOf(address hotKey) external view returns (address) {
        return hotKeys[hotKey].account;
    }

    function delegationDigest(address account, address hotKey, uint64 expiry) public view returns (bytes32) {
        return _hashTypedDataV4(Delegation(deploymentId, account, hotKey, expiry).structHash());
    }

    function peerBindingDigest(PeerBinding calldata binding) external view returns (bytes32) {
        _requireOurs(binding.deploymentId);
        return _hashTypedDataV4(binding.structHash());
    }

    // ---- inside

    function _value(Pool storage pool, uint256 shares) private view returns (uint256) {
        // Exactly zero shares are worth nothing, also in a pool that has none to divide by.
        // slither-disable-next-line incorrect-equality
        return shares == 0 ? 0 : Math.mulDiv(shares, pool.tokens, pool.shares);
    }

    function _deposit(Pool storage pool, uint256 amount) private {
        uint256 shares = pool.tokens == 0 ? amount : Math.mulDiv(amount, pool.shares, pool.tokens);
        pool.tokens += amount;
        pool.shares += shares;
        pool.activeShares += shares;
    }

    function _draw(address who, uint8 role, uint256 ppm) private returns (uint256 amount) {
        Pool storage pool = _pools[who][role];
        amount = Math.mulDiv(pool.tokens, ppm, PPM, Math.Rounding.Ceil);
        pool.tokens -= amount;
        // Zero only when everything was taken, or nothing was there.
        // slither-disable-next-line incorrect-equality
        if (pool.tokens == 0 && amount != 0) {
            pool.shares = 0;
            pool.activeShares = 0;
            pool.generation += 1; // tickets of the emptied pool are worth nothing
        }
    }

    /// @dev Nobody earns from an own fault; such a share burns with the rest.
    function _shares(address who, uint256 amount, address buyer, address challenger)
        private
        view
        returns (uint256 toBuyer, uint256 toChallenger)
    {
        toBuyer = buyer == address(0) || buyer == who ? 0 : amount * buyerPpm / PPM;
        toChallenger =
            challenger == address(0) || challenger == who ? 0 : Math.min(accuserFee, amount * FEE_PPM_MAX / PPM);
    }

    function _credit(address who, uint256 amount) private {
        rewards[who] += amount;
        rewardsTotal += amount;
    }

    /// @dev Records a slash of the whole stake; the caller burns the unassigned rest after all state changes.
    function _take(address who, uint8 role, bytes32 offenceId, address reporter)
        private
        returns (uint256 burnt, bool isPaid)
    {
        uint256 amount = _draw(who, role, PPM);
        if (amount == 0) return (0, false);
        (, uint256 fee) = _shares(who, amount, address(0), reporter);
        (burnt, isPaid) = (amount - fee, fee != 0);
        _credit(reporter, fee);
        emit Slashed(who, role, offenceId, amount, burnt, address(0), 0, reporter, fee, 0);
    }

    /// @dev A verifier of a run that is not over keeps the minimum at stake.
    function _requireFree(uint8 role, uint256 left, uint256 minimum) private view {
        // As in minStake.
        // slither-disable-next-line incorrect-equality
        if (role == VERIFIER && left < minimum && escrow.isHeld(msg.sender)) revert StakeHeld(msg.sender);
    }

    function _closed(bytes32 offenceId) private returns (Pot memory pot) {
        pot = pots[offenceId];
        if (!pot.isOpen) revert NoOpenPot(offenceId);
        pots[offenceId].isOpen = false;
        potsTotal -= pot.amount;
    }

    function _unlocked(bytes32 caseId) private returns (address who, uint256 amount) {
        (who, amount) = (bonds[caseId].who, bonds[caseId].amount);
        if (amount == 0) revert NoBond(caseId);
        bonds[caseId].amount = 0;
        bondsTotal -= amount;
    }

    function _spend(uint256 ticket) private returns (Ticket memory t, Pool storage pool, uint256 amount) {
        t = tickets[ticket];
        if (t.who != msg.sender) revert NotYourTicket(ticket);
        // Zero is written when a ticket is spent, and no ticket is made with it.
        // slither-disable-next-line incorrect-equality
        if (t.shares == 0) revert TicketSpent(ticket);
        pool = _pools[t.who][t.role];
        // As in cancelUnstake.
        // slither-disable-next-line incorrect-equality
        amount = t.generation == pool.generation ? _value(pool, t.shares) : 0;
        tickets[ticket].shares = 0;
    }
}
