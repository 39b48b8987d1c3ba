// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {Guarded} from "./Guarded.sol";
import {IRunEscrow, ISlashCourt} from "./Interfaces.sol";
import {PermitAndCall} from "./PermitAndCall.sol";
import {Delegation, Judge, PeerBinding, Statements} from "./Statements.sol";
import {Tokens} from "./Tokens.sol";

/// @title Stake of operators and verifiers: free, locked in lots, or leaving.
/// @notice A lot is locked to one commitment: an operator's seat in a run, or a verifier's place in a verifier set. Only
///         its owner locks it. A slash by order takes a share of the lot of the commitment it is about, and of nothing
///         else; a contradiction takes all three parts. What a case took waits in a pot, from which it is paid out, or
///         goes back into the lot. A lot is released once nothing about its commitment can be disputed: an evidence window
///         after the commitment is over, or after the court discharged the lot's owner.
/// @dev    Only the slash court can slash or hold a lot, only it and the appeal court keep bonds here; there is no pause.
contract StakeVault is Judge, Guarded, PermitAndCall {
    using Tokens for IERC20;
    using Statements for Delegation;
    using Statements for PeerBinding;

    uint8 public constant OPERATOR = 0;
    uint8 public constant VERIFIER = 1;
    uint256 public constant PPM = 1_000_000;
    /// @dev At least a fifth of every slash is burnt, so that offender, buyer and accuser
    ///      in one hand still lose money.
    uint256 public constant BUYER_PPM_MAX = 500_000;
    uint256 public constant FEE_PPM_MAX = 300_000;
    /// @notice The longest time for which an account can bind itself: the longest run, and time to open it.
    uint64 public constant LOCK_SECONDS_MAX = 400 days;

    struct Params {
        uint64 unbondingDelay; // seconds
        uint256 minOperatorStake; // token units
        uint256 minVerifierStake; // token units
        uint256 buyerPpm; // of a slash by order; of an equivocation the buyer gets nothing
        uint256 accuserFee; // token units, whatever was slashed: accusing pays its cost and no more
        address sink; // where what is burnt goes: an address that nobody has the key of
    }

    /// @dev One account's stake in one role; all zero once it is banned.
    struct Stake {
        uint256 free;
        uint256 locked; // in lots
        uint256 leaving; // in tickets
    }

    struct Lot {
        uint128 amount;
        uint64 until; // its owner is bound to nothing that ends later, see `discharge`; zero where there is no lot
        uint64 cases; // open ones, each of which keeps the lot
    }

    struct Ticket {
        address who;
        uint8 role;
        uint64 readyAt;
        uint256 amount; // zero once withdrawn or cancelled
    }

    /// @dev What a case took, until it is paid out or restored.
    struct Pot {
        address who; // stays for ever: one offence, one slash
        uint8 role;
        bool isOpen;
        uint256 amount;
        address buyer;
        address challenger;
        bytes32 commitment;
    }

    struct Bond {
        address who;
        uint96 amount; // zero once returned, shared or burnt
    }

    struct HotKey {
        address account;
        uint64 expiry;
        bool isReplaced; // by another one of its account
    }

    address public immutable court;
    IRunEscrow public immutable escrow;
    uint64 public immutable unbondingDelay;
    uint256 public immutable buyerPpm;
    uint256 public immutable accuserFee;
    address public immutable sink;
    uint256 private immutable _minOperatorStake;
    uint256 private immutable _minVerifierStake;

    mapping(address who => mapping(uint8 role => Stake)) private _stakes;
    mapping(address who => mapping(uint8 role => mapping(bytes32 commitment => Lot))) private _lots;
    mapping(uint256 id => Ticket) public tickets;
    mapping(address hotKey => HotKey) public hotKeys;
    /// @notice The hot key that an account delegated last; zero before the first.
    mapping(address account => address hotKey) public hotKeyOf;
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
    event LotLocked(address indexed account, uint8 role, bytes32 indexed commitment, uint256 amount, uint64 until);
    event LotReleased(address indexed account, uint8 role, bytes32 indexed commitment, uint256 amount);
    event LotDischarged(address indexed account, uint8 role, bytes32 indexed commitment, uint64 until);

    error OnlyCourt();
    error UnknownRole(uint8 role);
    error BadParams();
    error ZeroAmount();
    error BelowMinimum(uint256 left, uint256 minimum);
    error NotEnoughStake(uint256 free, uint256 asked);
    error NotYourTicket(uint256 ticket);
    error TicketSpent(uint256 ticket);
    error TooEarly(uint64 readyAt);
    error BadUntil(uint64 until);
    error NoLot(address who, bytes32 commitment);
    error LotHeld(uint64 cases);
    error NotBound(uint64 until);
    error HotKeyTaken(address account);
    error BadConsent(address signer);
    error AlreadySlashed(bytes32 offenceId);
    error NoOpenPot(bytes32 offenceId);
    error BondTaken(bytes32 caseId);
    error NoBond(bytes32 caseId);
    error AccountBanned(address who);

    modifier onlyCourt() {
        if (msg.sender != court) revert OnlyCourt();
        _;
    }

    /// @dev Bonds alone are also the appeal court's.
    modifier onlyCourts() {
        if (msg.sender != court && msg.sender != ISlashCourt(court).appeals()) revert OnlyCourt();
        _;
    }

    constructor(bytes32 deploymentId_, IERC20 token_, address court_, IRunEscrow escrow_, Params memory p)
        Judge("AssayStakeVault", deploymentId_)
        PermitAndCall(token_)
    {
        if (p.buyerPpm > BUYER_PPM_MAX) revert BadParams();
        if (p.minOperatorStake == 0 || p.minVerifierStake == 0 || court_ == address(0)) revert BadParams();
        if (p.sink == address(0) || p.sink == address(this)) revert BadParams(); // coins refuse the one, the books the other
        court = court_;
        escrow = escrow_;
        unbondingDelay = p.unbondingDelay;
        buyerPpm = p.buyerPpm;
        accuserFee = p.accuserFee;
        sink = p.sink;
        _minOperatorStake = p.minOperatorStake;
        _minVerifierStake = p.minVerifierStake;
    }

    // ---- the account's own moves

    function stake(uint8 role, uint256 amount) external nonReentrant {
        uint256 minimum = minStake(role);
        if (amount == 0) revert ZeroAmount();
        if (banned[msg.sender]) revert AccountBanned(msg.sender);
        Stake storage s = _stakes[msg.sender][role];
        s.free += amount;
        uint256 active = s.free + s.locked;
        if (active < minimum) revert BelowMinimum(active, minimum);
        emit Staked(msg.sender, role, amount);
        token.pull(amount);
    }

    /// @notice Locks `amount` more of the caller's free stake in its lot for a commitment that ends at `until`. No
    ///         lot's time becomes shorter by it; a lot that a slash has cut is made whole in the same way.
    /// @param commitment Of an operator: the run's id. Of a verifier: the number of the verifier set.
    function lock(uint8 role, bytes32 commitment, uint128 amount, uint64 until) external {
        _lock(msg.sender, role, commitment, amount, until);
    }

    /// @notice Makes a lot free stake again. Anyone may call once the commitment is over and can no longer be disputed;
    ///         its owner also before the commitment has begun.
    function release(address who, uint8 role, bytes32 commitment) external {
        Lot memory lot = _lotAt(who, role, commitment);
        if (lot.cases != 0) revert LotHeld(lot.cases);
        uint64 end = escrow.endOf(role, commitment);
        // Zero is what the escrow answers for what has not begun.
        // slither-disable-next-line incorrect-equality
        if (end != 0 || msg.sender != who) {
            if (end == 0 || end > lot.until) end = lot.until;
            uint64 readyAt = end + ISlashCourt(court).evidenceWindow();
            if (block.timestamp < readyAt) revert TooEarly(readyAt);
        }
        delete _lots[who][role][commitment];
        uint256 amount = _valueOf(who, lot);
        Stake storage s = _stakes[who][role];
        s.locked -= amount;
        s.free += amount;
        emit LotReleased(who, role, commitment, amount);
    }

    /// @notice Starts to leave with `amount` of free stake; what stays is nothing or at least the minimum.
    function requestUnstake(uint8 role, uint256 amount) external returns (uint256 ticket) {
        uint256 minimum = minStake(role);
        if (amount == 0) revert ZeroAmount();
        Stake storage s = _stakes[msg.sender][role];
        if (amount > s.free) revert NotEnoughStake(s.free, amount);
        uint256 left = s.free + s.locked - amount;
        if (left != 0 && left < minimum) revert BelowMinimum(left, minimum);
        s.free -= amount;
        s.leaving += amount;
        uint64 readyAt = uint64(block.timestamp) + unbondingDelay;
        ticket = ++ticketCount;
        tickets[ticket] = Ticket(msg.sender, role, readyAt, amount);
        emit UnstakeRequested(msg.sender, role, ticket, amount, readyAt);
    }

    function cancelUnstake(uint256 ticket) external {
        (uint8 role, Stake storage s, uint256 amount) = _spend(ticket);
        s.leaving -= amount;
        s.free += amount;
        emit UnstakeCancelled(msg.sender, role, ticket, amount);
    }

    function withdraw(uint256 ticket) external nonReentrant {
        uint64 readyAt = tickets[ticket].readyAt;
        (uint8 role, Stake storage s, uint256 amount) = _spend(ticket);
        if (block.timestamp < readyAt) revert TooEarly(readyAt);
        s.leaving -= amount;
        emit Withdrawn(msg.sender, role, ticket, amount);
        token.push(escrow.payeeOf(msg.sender), amount);
    }

    /// @notice Lets `hotKey` sign for the caller, in place of the one before: that is worth nothing in a certificate from
    ///         now on, and stays evidence against the account. A hot key is bound to its account for ever, so that no
    ///         account escapes an old offence by delegating again; `consent` is the hot key's own
    ///         signature, so that no account claims another's key.
    function delegate(address hotKey, uint64 expiry, bytes calldata consent) external {
        address owner = hotKeys[hotKey].account;
        if (owner != address(0) && owner != msg.sender) revert HotKeyTaken(owner);
        address signer = ECDSA.recover(delegationDigest(msg.sender, hotKey, expiry), consent);
        if (signer != hotKey) revert BadConsent(signer);
        hotKeys[hotKeyOf[msg.sender]].isReplaced = true; // of nobody's key before the first, which no signature has
        hotKeyOf[msg.sender] = hotKey;
        hotKeys[hotKey] = HotKey(msg.sender, expiry, false);
        emit HotKeyDelegated(msg.sender, hotKey, expiry);
    }

    /// @notice Pays out slash shares and returned bonds to the account `who`. Anyone may call.
    function collect(address who) external nonReentrant {
        uint256 amount = rewards[who];
        if (amount == 0) revert ZeroAmount();
        rewards[who] = 0;
        rewardsTotal -= amount;
        emit RewardCollected(who, amount);
        token.push(escrow.payeeOf(who), amount);
    }

    // ---- the court's moves

    /// @notice Moves a share of a lot into a pot, where it waits to be paid out or restored.
    /// @return amount What was taken: the ceiling of ppm of the lot.
    function slash(
        address who,
        uint8 role,
        bytes32 commitment,
        uint256 ppm,
        bytes32 offenceId,
        address buyer,
        address challenger,
        uint64 payableAt
    ) external onlyCourt nonReentrant returns (uint256 amount) {
        if (ppm > PPM || payableAt == 0) revert BadParams();
        if (pots[offenceId].who != address(0)) revert AlreadySlashed(offenceId);
        Lot storage lot = _lotAt(who, role, commitment);
        amount = Math.mulDiv(_valueOf(who, lot), ppm, PPM, Math.Rounding.Ceil);
        lot.amount -= uint128(amount);
        _stakes[who][role].locked -= amount;
        pots[offenceId] = Pot(who, role, true, amount, buyer, challenger, commitment);
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
        token.push(sink, burnt);
    }

    /// @notice Undoes a slash: the pot goes back into the lot, which its case has kept. An account that was banned since
    ///         gets nothing back.
    function restore(bytes32 offenceId) external onlyCourt nonReentrant {
        Pot memory pot = _closed(offenceId);
        if (banned[pot.who]) revert AccountBanned(pot.who);
        _lotAt(pot.who, pot.role, pot.commitment).amount += uint128(pot.amount);
        _stakes[pot.who][pot.role].locked += pot.amount;
        emit SlashReversed(pot.who, pot.role, offenceId, pot.amount);
    }

    /// @notice Takes the whole stake in every role at once, free, locked and leaving, and bans the account from staking for ever. Otherwise
    ///         an offence reported while the stake was small could be repeated without loss when it is large.
    /// @dev   No buyer is paid: who reports itself in a run of its own would have a share back. The fee is paid once.
    function bar(address who, bytes32 offenceId, address reporter) external onlyCourt nonReentrant {
        if (banned[who]) revert AccountBanned(who);
        banned[who] = true;
        (uint256 burnt, bool isPaid) = _take(who, OPERATOR, offenceId, reporter);
        (uint256 more,) = _take(who, VERIFIER, offenceId, isPaid ? address(0) : reporter);
        token.push(sink, burnt + more);
    }

    /// @notice Keeps a lot where it is until the case ends, which anybody can bring about in time.
    function hold(address who, uint8 role, bytes32 commitment) external onlyCourt {
        _lotAt(who, role, commitment).cases += 1;
    }

    function unhold(address who, uint8 role, bytes32 commitment) external onlyCourt {
        _lotAt(who, role, commitment).cases -= 1;
    }

    /// @notice A lot's owner is bound to nothing from now on; slash orders still reach the lot until it is released. Its
    ///         time never becomes longer by this, and its owner can bind itself again.
    function discharge(address who, uint8 role, bytes32 commitment) external onlyCourt {
        Lot storage lot = _lotAt(who, role, commitment);
        uint64 now_ = uint64(block.timestamp);
        if (lot.until <= now_) revert NotBound(lot.until);
        lot.until = now_;
        emit LotDischarged(who, role, commitment, now_);
    }

    /// @notice Books a bond whose tokens the court sent here just before.
    function lockBond(bytes32 caseId, address who, uint128 amount) external onlyCourts {
        if (bonds[caseId].amount != 0) revert BondTaken(caseId);
        bonds[caseId] = Bond(who, SafeCast.toUint96(amount));
        bondsTotal += amount;
        emit BondLocked(caseId, who, amount);
    }

    /// @notice Credits a case's bond to the account that put it up.
    function returnBond(bytes32 caseId) external onlyCourts {
        (address who, uint256 amount) = _unlocked(caseId);
        _credit(who, amount);
        emit BondReturned(caseId, who, amount);
    }

    function burnBond(bytes32 caseId) external onlyCourt nonReentrant {
        (address who, uint256 amount) = _unlocked(caseId);
        emit BondBurnt(caseId, who, amount);
        token.push(sink, amount);
    }

    /// @notice Divides a lost bond: one half to the winner, one to the jurors in equal parts. What is left over, without
    ///         jurors that half, burns.
    function shareBond(bytes32 bondId, address winner, address[] calldata jurors) external onlyCourts nonReentrant {
        (address who, uint256 amount) = _unlocked(bondId);
        uint256 left = amount - amount / 2;
        _credit(winner, amount / 2);
        emit BondReturned(bondId, winner, amount / 2);
        uint256 fee = jurors.length == 0 ? 0 : left / jurors.length;
        uint256 fees = 0;
        for (uint256 i = 0; i < jurors.length; i++) {
            rewards[jurors[i]] += fee;
            fees += fee;
            emit BondReturned(bondId, jurors[i], fee);
        }
        rewardsTotal += fees;
        left -= fees;
        emit BondBurnt(bondId, who, left);
        token.push(sink, left);
    }

    // ---- reads

    function minStake(uint8 role) public view returns (uint256) {
        if (role > VERIFIER) revert UnknownRole(role);
        // One of two roles, checked above: equal is what is meant.
        // slither-disable-next-line incorrect-equality
        return role == OPERATOR ? _minOperatorStake : _minVerifierStake;
    }

    /// @return active What is free or locked.
    function stakeOf(address who, uint8 role) external view returns (uint256 active, uint256 unbonding) {
        Stake storage s = _stakes[who][role];
        return (s.free + s.locked, s.leaving);
    }

    function freeOf(address who, uint8 role) external view returns (uint256) {
        return _stakes[who][role].free;
    }

    /// @notice A lot's value, its time and the cases that keep it; zeros where there is none.
    function lotOf(address who, uint8 role, bytes32 commitment)
        external
        view
        returns (uint256 amount, uint64 until, uint64 cases)
    {
        Lot storage lot = _lots[who][role][commitment];
        return (_valueOf(who, lot), lot.until, lot.cases);
    }

    /// @notice What a ticket will pay; zero when it is spent or its account was banned.
    function ticketValue(uint256 ticket) external view returns (uint256) {
        Ticket storage t = tickets[ticket];
        return banned[t.who] ? 0 : t.amount;
    }

    function accountOf(address hotKey) external view returns (address) {
        return hotKeys[hotKey].account;
    }

    /// @notice The account that a hot key signs for in certificates; zero if it was replaced or never delegated.
    function speaksFor(address hotKey) external view returns (address) {
        HotKey storage key = hotKeys[hotKey];
        return key.isReplaced ? address(0) : key.account;
    }

    function delegationDigest(address account, address hotKey, uint64 expiry) public view returns (bytes32) {
        return _hashTypedDataV4(Delegation(deploymentId, account, hotKey, expiry).structHash());
    }

    function peerBindingDigest(PeerBinding calldata binding) external view returns (bytes32) {
        _requireOurs(binding.deploymentId);
        return _hashTypedDataV4(binding.structHash());
    }

    // ---- inside

    /// @dev The one place in which a lot grows: every consent of its owner ends here.
    function _lock(address who, uint8 role, bytes32 commitment, uint128 amount, uint64 until) private {
        if (role > VERIFIER) revert UnknownRole(role);
        Stake storage s = _stakes[who][role];
        if (amount > s.free) revert NotEnoughStake(s.free, amount);
        Lot storage lot = _lots[who][role][commitment];
        if (until <= block.timestamp || until > block.timestamp + LOCK_SECONDS_MAX || until < lot.until) {
            revert BadUntil(until);
        }
        s.free -= amount;
        s.locked += amount;
        lot.amount += amount;
        lot.until = until;
        if (lot.amount == 0) revert ZeroAmount();
        emit LotLocked(who, role, commitment, amount, until);
    }

    function _lotAt(address who, uint8 role, bytes32 commitment) private view returns (Lot storage lot) {
        lot = _lots[who][role][commitment];
        if (lot.until == 0) revert NoLot(who, commitment);
    }

    function _valueOf(address who, Lot memory lot) private view returns (uint256) {
        return banned[who] ? 0 : lot.amount;
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
        Stake memory s = _stakes[who][role];
        uint256 amount = s.free + s.locked + s.leaving;
        if (amount == 0) return (0, false);
        delete _stakes[who][role];
        (, uint256 fee) = _shares(who, amount, address(0), reporter);
        (burnt, isPaid) = (amount - fee, fee != 0);
        _credit(reporter, fee);
        emit Slashed(who, role, offenceId, amount, burnt, address(0), 0, reporter, fee, 0);
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

    function _spend(uint256 ticket) private returns (uint8 role, Stake storage s, uint256 amount) {
        Ticket storage t = tickets[ticket];
        if (t.who != msg.sender) revert NotYourTicket(ticket);
        // Zero is written when a ticket is spent, and no ticket is made with it.
        // slither-disable-next-line incorrect-equality
        if (t.amount == 0) revert TicketSpent(ticket);
        (role, s, amount) = (t.role, _stakes[msg.sender][t.role], banned[msg.sender] ? 0 : t.amount);
        t.amount = 0;
    }
}
