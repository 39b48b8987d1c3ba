// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Guarded} from "./Guarded.sol";
import {IRunEscrow, ISlashCourt, IStakeVault, IVerifierSet} from "./Interfaces.sol";
import {Juries, Jury} from "./Juries.sol";
import {PermitAndCall} from "./PermitAndCall.sol";
import {Statement} from "./Statements.sol";
import {Tokens} from "./Tokens.sol";

/// @title Appeals of slash orders about a step: the accused wins against any number of liars, if a jury is honest.
/// @notice The accused claims the digests of what a step's operators put out, cut in parts. Each member of the run's set
///         that signed the order may defend it, in a game of its own: it names the first part that it holds to be wrong,
///         the accused cuts that part again, until one operator is left, which a jury recomputes alone. The appeal is won
///         if no defence succeeds.
///
///     NONE --appeal--> OPEN --answer window over, all defences ended, conclude--> WON (case reversed)
///                       |--a jury finds the operator wrong, or the accused does not cut in time--> LOST (case goes on)
///                       '--a jury does not answer in time--> LAPSED (case goes on)
///
///     defence: NONE --defend--> CUT --cut--> CHOOSE --choose--> CUT ... --one operator left--> JURY --> ENDED
///
/// @dev    A digest at position i binds what the first i operators put out, so of two positions of which one is agreed on
///         and one is not, the operators between them decide. No claim of the accused is compared with an earlier one:
///         whatever it says, a defender that knows the truth keeps a right position before a wrong one.
contract AppealCourt is Guarded, PermitAndCall {
    using Tokens for IERC20;
    using Juries for Jury;

    enum State {
        NONE,
        OPEN,
        WON,
        LOST,
        LAPSED
    }

    enum Phase {
        NONE,
        CUT,
        CHOOSE,
        JURY,
        ENDED
    }

    struct Params {
        uint64 moveWindow; // seconds
        uint64 voteWindow; // seconds, from an operator alone to its jury's answer
        uint64 drawDelay; // blocks
        uint8 jurySeats;
        uint96 bond; // token units, of the appeal and of each defence
    }

    struct Appeal {
        State state;
        uint64 answerBy; // end of the time in which defences begin
        uint32 operators; // of the step's program
        uint32 playing; // defences that have not ended
        uint64 signers; // bitmap of the members of the run's set who may defend
        uint32 version; // of that set
        address accused;
        address opener; // of the case
        bytes32 runId;
        bytes32 positions; // hash of the claimed digests
        bytes32 bondId;
    }

    struct Defence {
        Phase phase;
        uint64 until; // end of the time for the next move
        uint32 first; // operators of which the outputs are agreed on
        uint32 last; // operators of which they are not
        uint48 asked; // block in which the jury was asked for
        uint32 entries; // on the jury list at that time
        bytes32 start; // digest at `first`
        bytes32 end; // digest at `last`
        bytes32 positions; // hash of the digests of the last cut
        bytes32 bondId;
    }

    /// @notice Parts of one cut.
    uint32 public constant PARTS = 64;
    /// @notice Cuts after the first: every program is narrowed to one operator by them.
    uint32 public constant CUTS_MAX = 2;
    uint32 public constant OPERATORS_MAX = 262_144; // PARTS ** (CUTS_MAX + 1)
    uint64 private constant CAP_PERIOD = 30 days; // SlashCourt's
    uint8 private constant COMMIT = 1; // the kind of a statement about a step

    bytes32 public immutable deploymentId;
    ISlashCourt public immutable court;
    IStakeVault public immutable vault;
    IVerifierSet public immutable verifierSet;
    IRunEscrow public immutable escrow;
    uint64 public immutable moveWindow;
    uint64 public immutable voteWindow;
    uint64 public immutable drawDelay;
    uint8 public immutable jurySeats;
    uint96 public immutable bond;

    mapping(bytes32 caseId => Appeal) private _appeals;
    mapping(bytes32 caseId => mapping(address defender => Defence)) private _defences;
    mapping(bytes32 caseId => mapping(address defender => Jury)) private _juries;

    event Appealed(bytes32 indexed caseId, bytes32 indexed runId, uint32 operators, bytes32[] positions, uint64 answerBy);
    event Defended(bytes32 indexed caseId, address indexed defender, uint32 first, uint32 last, uint64 until);
    event Cut(bytes32 indexed caseId, address indexed defender, bytes32[] positions, uint64 until);
    event JuryAsked(bytes32 indexed caseId, address indexed defender, uint32 operator, bytes32 end, uint64 until);
    event AppealJuryDrawn(bytes32 indexed caseId, address indexed defender, address[] jury);
    event AppealVoted(bytes32 indexed caseId, address indexed defender, address indexed juror, bool isRight);
    event DefenceEnded(bytes32 indexed caseId, address indexed defender);
    event AppealEnded(bytes32 indexed caseId, State outcome);

    error BadParams();
    error BadOperators(uint32 arrived);
    error BadCut(uint256 parts, uint256 expected);
    error OtherPositions(bytes32 arrived, bytes32 expected);
    error WrongState(State state);
    error WrongPhase(Phase phase);
    error AlreadyAppealed(bytes32 caseId);
    error NotTheAccused(address who);
    error NotASigner(address who);
    error NotTheStep(bytes32 caseId);
    error WindowOver(uint64 endedAt);
    error TooEarly(uint64 readyAt);
    error DefencesPlay(uint32 playing);

    constructor(
        bytes32 deploymentId_,
        ISlashCourt court_,
        IVerifierSet verifierSet_,
        IRunEscrow escrow_,
        Params memory p
    ) PermitAndCall(court_.vault().token()) {
        if (court_.appeals() != address(this) || p.moveWindow == 0 || p.voteWindow == 0 || p.bond == 0) {
            revert BadParams();
        }
        if (p.drawDelay == 0 || p.jurySeats < Juries.SEATS_MIN || p.jurySeats > Juries.SEATS_MAX) revert BadParams();
        // A veto, at its latest, still gives back to the cap what its case counted.
        uint256 longest = uint256(p.moveWindow) * (1 + 2 * CUTS_MAX) + p.voteWindow;
        if (court_.vetoWindow() + longest + court_.executeWindow() + court_.payoutDelay() >= CAP_PERIOD) {
            revert BadParams();
        }
        deploymentId = deploymentId_;
        court = court_;
        vault = court_.vault();
        verifierSet = verifierSet_;
        escrow = escrow_;
        moveWindow = p.moveWindow;
        voteWindow = p.voteWindow;
        drawDelay = p.drawDelay;
        jurySeats = p.jurySeats;
        bond = p.bond;
    }

    // ---- the accused

    /// @notice Appeals a case within its veto window, once; the account that the case accuses.
    /// @param operators How many operators the step's program has; jurors know it, so a wrong number loses.
    /// @param positions Digests after each part of the program, see `partsOf`; the last one is the whole claim.
    // Guarded, as is everything else here that changes state: whom the contracts and the token call in between
    // can only read.
    // slither-disable-next-line reentrancy-no-eth
    function appeal(bytes32 caseId, uint32 operators, bytes32[] calldata positions) external nonReentrant {
        Appeal storage a = _appeals[caseId];
        if (a.state != State.NONE) revert AlreadyAppealed(caseId);
        if (operators == 0 || operators > OPERATORS_MAX) revert BadOperators(operators);
        _requireParts(positions, 0, operators);
        (a.state, a.answerBy) = (State.OPEN, uint64(block.timestamp) + moveWindow);
        (a.operators, a.accused, a.positions) = (operators, msg.sender, _hash(positions));
        (a.runId, a.signers, a.opener) = court.suspend(caseId, msg.sender);
        a.version = escrow.setVersionOf(a.runId);
        emit Appealed(caseId, a.runId, operators, positions, a.answerBy);
        a.bondId = _lockBond(caseId);
    }

    /// @notice Cuts the part that a defender named into parts again; the last digest is the one that it rejects.
    function cut(bytes32 caseId, address defender, bytes32[] calldata positions) external nonReentrant {
        Appeal storage a = _open(caseId);
        if (msg.sender != a.accused) revert NotTheAccused(msg.sender);
        Defence storage d = _inTime(caseId, defender, Phase.CUT);
        _requireParts(positions, d.first, d.last);
        bytes32 end = positions[positions.length - 1];
        if (end != d.end) revert OtherPositions(end, d.end);
        (d.phase, d.until, d.positions) = (Phase.CHOOSE, uint64(block.timestamp) + moveWindow, _hash(positions));
        emit Cut(caseId, defender, positions, d.until);
    }

    // ---- who defends the order

    /// @notice Defends an order that the sender signed, by naming the first part it holds to be wrong.
    /// @param s The accused's own statement about the step, and `signature` of its hot key: an order that is about no
    ///          step that the accused committed to cannot be defended.
    function defend(
        bytes32 caseId,
        uint32 part,
        bytes32[] calldata positions,
        Statement calldata s,
        bytes calldata signature
    ) external nonReentrant {
        Appeal storage a = _open(caseId);
        if (block.timestamp >= a.answerBy) revert WindowOver(a.answerBy);
        uint256 seat = verifierSet.seatOf(a.version, msg.sender);
        // No member has seat zero: equal is what is meant.
        // slither-disable-next-line incorrect-equality
        if (seat == 0 || a.signers >> (seat - 1) & 1 == 0) revert NotASigner(msg.sender);
        _requireStep(caseId, a, s, signature);
        Defence storage d = _defences[caseId][msg.sender];
        if (d.phase != Phase.NONE) revert WrongPhase(d.phase);
        if (_hash(positions) != a.positions) revert OtherPositions(_hash(positions), a.positions);
        a.playing += 1;
        d.last = a.operators;
        _narrow(caseId, msg.sender, d, part, positions);
        d.bondId = _lockBond(caseId);
    }

    /// @notice Names the first part of the last cut that the sender holds to be wrong.
    function choose(bytes32 caseId, uint32 part, bytes32[] calldata positions) external nonReentrant {
        _open(caseId);
        Defence storage d = _inTime(caseId, msg.sender, Phase.CHOOSE);
        if (_hash(positions) != d.positions) revert OtherPositions(_hash(positions), d.positions);
        _narrow(caseId, msg.sender, d, part, positions);
    }

    // ---- the jury

    /// @notice Draws the jury of a defence, by the randomness of this block, outside the order's signers. Anyone may call.
    function drawJury(bytes32 caseId, address defender) external nonReentrant {
        Appeal storage a = _open(caseId);
        Defence storage d = _inTime(caseId, defender, Phase.JURY);
        Jury storage jury = _juries[caseId][defender];
        jury.requireDue(d.asked, drawDelay);
        jury.seats = verifierSet.draw(
            keccak256(abi.encode(block.prevrandao, caseId, defender)),
            jurySeats,
            d.entries,
            d.asked,
            a.version,
            a.signers,
            [a.accused, a.opener]
        );
        emit AppealJuryDrawn(caseId, defender, jury.seats);
    }

    /// @notice A juror's answer, with all its seats: whether `end` is right after operator `first`. More than half of
    ///         the seats decide.
    function vote(bytes32 caseId, address defender, bytes32 end, bool isRight) external nonReentrant {
        Appeal storage a = _open(caseId);
        Defence storage d = _inTime(caseId, defender, Phase.JURY);
        if (end != d.end) revert OtherPositions(end, d.end);
        Jury storage jury = _juries[caseId][defender];
        (uint32 side, bool isDecided) = jury.cast(msg.sender, isRight);
        emit AppealVoted(caseId, defender, msg.sender, isRight);
        if (!isDecided) return;
        address[] memory winners = jury.accountsOf(side);
        if (isRight) _fail(caseId, defender, a, d, winners);
        else _succeed(caseId, defender, a, d, winners);
    }

    // ---- exits by time; anyone may call

    /// @notice Ends a defence whose next move did not come in time, or whose appeal has ended.
    function lapse(bytes32 caseId, address defender) external nonReentrant {
        Appeal storage a = _appeals[caseId];
        Defence storage d = _defences[caseId][defender];
        if (d.phase == Phase.NONE || d.phase == Phase.ENDED) revert WrongPhase(d.phase);
        if (a.state != State.OPEN) {
            _close(caseId, defender, a, d);
            vault.returnBond(d.bondId);
            return;
        }
        if (block.timestamp < d.until) revert TooEarly(d.until);
        if (d.phase == Phase.CUT) {
            _succeed(caseId, defender, a, d, new address[](0));
        } else if (d.phase == Phase.CHOOSE) {
            _fail(caseId, defender, a, d, new address[](0));
        } else {
            _close(caseId, defender, a, d);
            _end(caseId, a, State.LAPSED);
            vault.returnBond(d.bondId);
            // Half of the bond returns, which nobody has won; the rest burns.
            vault.shareBond(a.bondId, a.accused, new address[](0));
        }
    }

    /// @notice Ends an appeal that no defence has met, or all have failed against: the case is reversed.
    function conclude(bytes32 caseId) external nonReentrant {
        Appeal storage a = _open(caseId);
        if (block.timestamp < a.answerBy) revert TooEarly(a.answerBy);
        if (a.playing != 0) revert DefencesPlay(a.playing);
        _end(caseId, a, State.WON);
        vault.returnBond(a.bondId);
    }

    // ---- reads

    function getAppeal(bytes32 caseId) external view returns (Appeal memory) {
        return _appeals[caseId];
    }

    function getDefence(bytes32 caseId, address defender) external view returns (Defence memory) {
        return _defences[caseId][defender];
    }

    function getJury(bytes32 caseId, address defender) external view returns (Jury memory) {
        return _juries[caseId][defender];
    }

    /// @notice Into how many parts operators `first` to `last`, exclusive, are cut. Part k ends before operator
    ///         first + (last - first) * (k + 1) / parts.
    function partsOf(uint32 first, uint32 last) public pure returns (uint32) {
        return last - first < PARTS ? last - first : PARTS;
    }

    // ---- inside

    function _open(bytes32 caseId) private view returns (Appeal storage a) {
        a = _appeals[caseId];
        if (a.state != State.OPEN) revert WrongState(a.state);
    }

    function _inTime(bytes32 caseId, address defender, Phase phase) private view returns (Defence storage d) {
        d = _defences[caseId][defender];
        if (d.phase != phase) revert WrongPhase(d.phase);
        if (block.timestamp >= d.until) revert WindowOver(d.until);
    }

    function _hash(bytes32[] calldata positions) private pure returns (bytes32) {
        return keccak256(abi.encode(positions));
    }

    function _requireParts(bytes32[] calldata positions, uint32 first, uint32 last) private pure {
        if (positions.length != partsOf(first, last)) revert BadCut(positions.length, partsOf(first, last));
    }

    /// @dev The offence's id is that of the commit: docs/protocol.md, section 7. Its other 12 bytes are the run's.
    function _requireStep(bytes32 caseId, Appeal storage a, Statement calldata s, bytes calldata signature)
        private
        view
    {
        bool isStep = s.deploymentId == deploymentId && s.runId == a.runId && s.kind == COMMIT
            && uint160(uint256(sha256(abi.encodePacked("assay/offence/1", s.value)))) == uint160(uint256(caseId));
        address signer = ECDSA.recover(court.statementDigest(s), signature);
        if (!isStep || vault.accountOf(signer) != a.accused) revert NotTheStep(caseId);
    }

    /// @dev Goes on in one part of a cut; a part of one operator goes to a jury.
    function _narrow(bytes32 caseId, address defender, Defence storage d, uint32 part, bytes32[] calldata positions)
        private
    {
        uint32 parts = uint32(positions.length);
        if (part >= parts) revert BadCut(part, parts);
        (uint32 first, uint32 width) = (d.first, d.last - d.first);
        if (part != 0) d.start = positions[part - 1];
        d.end = positions[part];
        d.first = first + uint32(uint256(width) * part / parts);
        d.last = first + uint32(uint256(width) * (part + 1) / parts);
        if (d.last - d.first > 1) {
            (d.phase, d.until) = (Phase.CUT, uint64(block.timestamp) + moveWindow);
            emit Defended(caseId, defender, d.first, d.last, d.until);
        } else {
            (d.phase, d.until) = (Phase.JURY, uint64(block.timestamp) + voteWindow);
            (d.asked, d.entries) = (uint48(block.number), uint32(verifierSet.entryCount()));
            emit JuryAsked(caseId, defender, d.first, d.end, d.until);
        }
    }

    /// @dev No case id can be made to collide with it: it is not known before its block.
    function _lockBond(bytes32 caseId) private returns (bytes32 bondId) {
        bondId = keccak256(abi.encode(caseId, msg.sender, block.prevrandao, block.number));
        vault.lockBond(bondId, msg.sender, bond);
        token.pull(bond);
        token.push(address(vault), bond);
    }

    /// @dev The operator is wrong, or was not shown in time: the order stands.
    function _succeed(bytes32 caseId, address defender, Appeal storage a, Defence storage d, address[] memory jurors)
        private
    {
        _close(caseId, defender, a, d);
        _end(caseId, a, State.LOST);
        vault.returnBond(d.bondId);
        vault.shareBond(a.bondId, defender, jurors);
    }

    function _fail(bytes32 caseId, address defender, Appeal storage a, Defence storage d, address[] memory jurors)
        private
    {
        _close(caseId, defender, a, d);
        vault.shareBond(d.bondId, a.accused, jurors);
    }

    function _close(bytes32 caseId, address defender, Appeal storage a, Defence storage d) private {
        d.phase = Phase.ENDED;
        a.playing -= 1;
        emit DefenceEnded(caseId, defender);
    }

    function _end(bytes32 caseId, Appeal storage a, State outcome) private {
        a.state = outcome;
        emit AppealEnded(caseId, outcome);
        court.resume(caseId, outcome == State.WON);
    }
}
