// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {AppealCourt} from "../src/AppealCourt.sol";
import {ISlashCourt, IRunEscrow, IVerifierSet} from "../src/Interfaces.sol";
import {Juries, Jury} from "../src/Juries.sol";
import {SlashCourt} from "../src/SlashCourt.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {SlashOrder, Statement} from "../src/Statements.sol";
import {World} from "./World.sol";

/// @notice An accused node, the four verifiers that may have signed, jurors outside them, and a program whose true
///         digests everybody can compute. A digest that is wrong stays wrong after later operators.
abstract contract AppealWorld is World {
    address internal constant ACCUSED = address(0xA1);
    address internal constant BUYER = address(0xB1);
    address internal constant OPENER = address(0xF1);
    uint256 internal constant HOT = 77;
    uint32 internal constant HONEST = type(uint32).max;
    bytes32 internal constant COMMIT = keccak256("commit");
    bytes32 internal caseId;
    bytes32 internal runId;
    uint32 internal operators;
    uint32 internal lie; // the operator from which on the accused's digests are wrong

    function prepare() internal {
        deploy();
        enlistJurors(4);
        fund(BUYER, address(escrow), 1e25);
        fund(OPENER, address(court), 1e25);
        fund(ACCUSED, address(vault), 10_000);
        fund(ACCUSED, address(appeals), 10_000);
        for (uint256 i = 0; i < 4; i++) {
            fund(address(uint160(0xE000 + i)), address(appeals), 10_000);
        }
        vm.prank(BUYER);
        runId = escrow.openRun(bytes32(0), 2_500, 1_000, 4, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
        bytes32 step = sha256(abi.encodePacked("assay/offence/1", COMMIT));
        caseId = bytes32(bytes12(runId)) | bytes32(uint256(uint160(uint256(step))));
        bytes memory consent = signature(HOT, vault.delegationDigest(ACCUSED, vm.addr(HOT), 1));
        vm.prank(ACCUSED);
        vault.delegate(vm.addr(HOT), 1, consent);
        vm.prank(ACCUSED);
        vault.stake(0, 1_000);
        lockLot(ACCUSED, 0, runId, 1_000);
    }

    /// @notice The first three verifiers sign.
    function openCase(bytes32 id) internal {
        SlashOrder memory r = SlashOrder(ID, runId, 1, ACCUSED, 0, 200_000, id, bytes32(0), OPENER);
        bytes memory cert = certificate(court.slashOrderDigest(r), 3);
        vm.prank(OPENER);
        court.openCase(r, 0, cert);
    }

    function verifier(uint256 i) internal view returns (address) {
        return vault.speaksFor(vm.addr(hotKeys[i]));
    }

    function truth(uint32 position) internal pure returns (bytes32) {
        return keccak256(abi.encode("true", position));
    }

    function claimed(uint32 position) internal view returns (bytes32) {
        return position <= lie ? truth(position) : keccak256(abi.encode("false", position));
    }

    function cutOf(uint32 first, uint32 last) internal view returns (bytes32[] memory positions) {
        uint32 parts = appeals.partsOf(first, last);
        positions = new bytes32[](parts);
        for (uint32 k = 0; k < parts; k++) {
            positions[k] = claimed(first + uint32(uint256(last - first) * (k + 1) / parts));
        }
    }

    /// @notice The first part whose end is wrong; the last one if none is.
    function wrongPart(uint32 first, uint32 last) internal view returns (uint32) {
        uint32 parts = appeals.partsOf(first, last);
        for (uint32 k = 0; k < parts; k++) {
            uint32 position = first + uint32(uint256(last - first) * (k + 1) / parts);
            if (claimed(position) != truth(position)) return k;
        }
        return parts - 1;
    }

    function step() internal view returns (Statement memory s, bytes memory sig) {
        s = Statement(ID, runId, 1, 1, bytes32(uint256(7)), COMMIT);
        sig = signature(HOT, court.statementDigest(s));
    }

    function appealed(uint32 count, uint32 lieAt) internal {
        (operators, lie) = (count, lieAt);
        bytes32[] memory positions = cutOf(0, count);
        vm.prank(ACCUSED);
        appeals.appeal(caseId, count, positions);
    }

    function defended(address who, uint32 part) internal {
        (Statement memory s, bytes memory sig) = step();
        bytes32[] memory positions = cutOf(0, operators);
        vm.prank(who);
        appeals.defend(caseId, part, positions, s, sig);
    }

    function defenceOf(address who) internal view returns (AppealCourt.Defence memory d) {
        d = appeals.getDefence(caseId, who);
    }

    /// @notice Cuts and choices until one operator is left; `pick` chooses, or the truth where it is zero.
    function narrowed(address who, uint256 pick) internal {
        for (uint256 moves = 0; defenceOf(who).phase != AppealCourt.Phase.JURY; moves++) {
            require(moves < appeals.CUTS_MAX(), "more cuts than there may be");
            AppealCourt.Defence memory d = defenceOf(who);
            bytes32[] memory positions = cutOf(d.first, d.last);
            vm.prank(ACCUSED);
            appeals.cut(caseId, who, positions);
            uint32 part = pick == 0 ? wrongPart(d.first, d.last) : uint32(pick % positions.length);
            vm.prank(who);
            appeals.choose(caseId, part, positions);
        }
    }

    /// @notice A jury that recomputes the one operator: right only if start and end are.
    function judged(address who) internal {
        AppealCourt.Defence memory d = defenceOf(who);
        bool isRight = d.end == truth(d.last) && (d.first == 0 || d.start == truth(d.first));
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        Jury memory jury;
        for (uint256 k = 1; jury.seats.length == 0; k++) {
            vm.prevrandao(bytes32(k)); // a draw of one account alone is no jury: the next block's may be
            try appeals.drawJury(caseId, who) {} catch {}
            jury = appeals.getJury(caseId, who);
        }
        for (uint256 k = 0; k < jury.seats.length && defenceOf(who).phase == AppealCourt.Phase.JURY; k++) {
            vm.prank(jury.seats[k]);
            (bool voted,) = address(appeals).call(abi.encodeCall(appeals.vote, (caseId, who, d.end, isRight)));
            voted; // refused to who has voted with its other seats
        }
    }

    function outcome() internal view returns (AppealCourt.State) {
        return appeals.getAppeal(caseId).state;
    }

    function caseState() internal view returns (SlashCourt.State) {
        return court.getCase(caseId).state;
    }
}

contract AppealTest is AppealWorld {
    function setUp() public {
        prepare();
        openCase(caseId);
    }

    function conserved() private view {
        require(appeals.token().balanceOf(address(appeals)) == 0, "the appeal court keeps money");
        require(vault.bondsTotal() == 0, "a bond is stuck");
    }

    /// @notice An honest account keeps its stake although a quorum signed against it and all of it lie in every move.
    function testFuzz_theHonestWinAgainstEverySignerWhateverTheyChoose(uint32 count, uint256[3] memory picks) public {
        count = uint32(between(count, 1, appeals.OPERATORS_MAX()));
        appealed(count, HONEST);
        for (uint256 i = 0; i < 3; i++) {
            defended(verifier(i), uint32(picks[i] % appeals.partsOf(0, count)));
        }
        for (uint256 i = 0; i < 3; i++) {
            narrowed(verifier(i), picks[i] | 1 << 255);
            judged(verifier(i));
        }
        vm.warp(appeals.getAppeal(caseId).answerBy);
        appeals.conclude(caseId);
        require(outcome() == AppealCourt.State.WON && caseState() == SlashCourt.State.VETOED, "convicted");
        require(lotOf(ACCUSED, 0, runId) == 1_000 && court.capLeft(ACCUSED, 0, runId) == CASE_PPM_MAX, "slashed");
        require(vault.rewards(ACCUSED) == APPEAL_BOND + 3 * uint256(APPEAL_BOND / 2), "lies were free");
        conserved();
    }

    /// @notice A lie loses wherever it is, if one of the signers is honest: the others may stall or choose falsely.
    function testFuzz_aLieLosesToOneHonestSigner(uint32 count, uint32 where, uint256 pick) public {
        count = uint32(between(count, 1, appeals.OPERATORS_MAX()));
        appealed(count, uint32(between(where, 0, count - 1)));
        (address friend, address honest) = (verifier(0), verifier(1));
        defended(friend, uint32(pick % appeals.partsOf(0, count)));
        defended(honest, wrongPart(0, count));
        narrowed(honest, 0);
        judged(honest);
        require(outcome() == AppealCourt.State.LOST && caseState() == SlashCourt.State.OPEN, "acquitted");
        require(vault.rewards(honest) == APPEAL_BOND + APPEAL_BOND / 2, "the defender is not paid");
        appeals.lapse(caseId, friend);
        require(vault.rewards(friend) == APPEAL_BOND, "a defence that had no time to lose is charged");
        conserved2(); // the case's own bond waits for its end
        vm.warp(court.getCase(caseId).vetoEndsAt);
        court.execute(caseId);
        require(lotOf(ACCUSED, 0, runId) == 800, "not slashed");
    }

    function conserved2() private view {
        require(vault.bondsTotal() == CASE_BOND, "a bond is stuck");
        uint256 owed = vault.rewardsTotal() + vault.potsTotal() + vault.bondsTotal();
        (uint256 stake,) = vault.stakeOf(ACCUSED, 0);
        require(token.balanceOf(address(vault)) == owed + stake + 8 * MIN_VERIFIER_STAKE, "money is lost");
    }

    function test_nobodyDefendsAndTheAppealIsWon() public {
        address one = verifier(0);
        appealed(100, HONEST);
        vm.expectPartialRevert(AppealCourt.TooEarly.selector);
        appeals.conclude(caseId);
        pass(DAY);
        vm.expectPartialRevert(AppealCourt.WindowOver.selector);
        this.tryDefend(one, 0);
        appeals.conclude(caseId);
        require(caseState() == SlashCourt.State.VETOED && vault.rewards(ACCUSED) == APPEAL_BOND, "not won");
        conserved();
    }

    function tryDefend(address who, uint32 part) external {
        defended(who, part);
    }

    function test_theAccusedThatDoesNotCutInTimeLoses() public {
        address one = verifier(0);
        appealed(1_000, HONEST);
        defended(one, 2);
        vm.expectPartialRevert(AppealCourt.TooEarly.selector);
        appeals.lapse(caseId, one);
        pass(DAY);
        appeals.lapse(caseId, one);
        require(outcome() == AppealCourt.State.LOST && vault.rewards(one) == APPEAL_BOND * 3 / 2, "not lost");
        require(token.balanceOf(SINK) == APPEAL_BOND / 2, "what no juror earned did not burn");
    }

    function test_aDefenderThatDoesNotChooseInTimeLosesAndTheAppealGoesOn() public {
        address one = verifier(0);
        appealed(1_000, HONEST);
        defended(one, 2);
        AppealCourt.Defence memory d = defenceOf(one);
        bytes32[] memory positions = cutOf(d.first, d.last);
        vm.prank(ACCUSED);
        appeals.cut(caseId, one, positions);
        pass(DAY);
        vm.expectPartialRevert(AppealCourt.DefencesPlay.selector);
        appeals.conclude(caseId);
        appeals.lapse(caseId, one);
        require(outcome() == AppealCourt.State.OPEN, "ended");
        appeals.conclude(caseId);
        require(vault.rewards(ACCUSED) == APPEAL_BOND * 3 / 2, "stalling was free");
        conserved();
    }

    function test_aJuryThatDoesNotAnswerLetsTheCaseGoOnForHalfOfTheBond() public {
        appealed(1, HONEST);
        defended(verifier(0), 0);
        pass(3 * DAY);
        appeals.lapse(caseId, verifier(0));
        require(outcome() == AppealCourt.State.LAPSED && caseState() == SlashCourt.State.OPEN, "another end");
        require(vault.rewards(ACCUSED) == APPEAL_BOND / 2 && vault.rewards(verifier(0)) == APPEAL_BOND, "another price");
        conserved2();
    }

    /// @notice A quorum that invents the id of an offence, or takes it from another run or account, cannot defend it.
    function testFuzz_onlyAStepThatTheAccusedSignedIsDefended(uint8 what) public {
        appealed(100, HONEST);
        (Statement memory s,) = step();
        if (what & 1 != 0) s.value = keccak256("another commit");
        if (what & 2 != 0) s.runId = bytes32(uint256(runId) ^ 1);
        if (what & 4 != 0) s.kind = 2;
        uint256 key = what & 8 != 0 ? HOT + 1 : HOT;
        bytes memory sig = signature(key, court.statementDigest(s));
        address who = what & 16 != 0 ? verifier(3) : verifier(0); // who did not sign the order
        bytes32[] memory positions = cutOf(0, 100);
        if (what & 32 != 0) positions[5] = "other";
        vm.prank(who);
        (bool taken,) = address(appeals).call(abi.encodeCall(appeals.defend, (caseId, 0, positions, s, sig)));
        require(taken == (what & 63 == 0), "another idea of an order that can be defended");
    }

    function test_aMemberThatDidNotSignDoesNotDefend() public {
        appealed(100, HONEST);
        (address other, bytes32[] memory positions) = (verifier(3), cutOf(0, 100));
        (Statement memory s, bytes memory sig) = step();
        vm.expectPartialRevert(AppealCourt.NotASigner.selector);
        vm.prank(other);
        appeals.defend(caseId, 0, positions, s, sig);
    }

    function test_anOrderAboutNoStepFalls() public {
        address one = verifier(0);
        caseId = offenceIn(runId, "invented");
        openCase(caseId);
        appealed(100, HONEST);
        vm.expectPartialRevert(AppealCourt.NotTheStep.selector);
        this.tryDefend(one, 0);
        pass(DAY);
        appeals.conclude(caseId);
        require(caseState() == SlashCourt.State.VETOED, "convicted");
    }

    /// @notice Once, in time, by the accused, and nothing else touches the case meanwhile.
    function testFuzz_aCaseIsAppealedOnceInItsVetoWindow(uint64 when, bool accused) public {
        uint64 end = court.getCase(caseId).vetoEndsAt;
        vm.warp(between(when, _now(), end + DAY));
        bytes32[] memory positions = cutOf(0, 2);
        address who = accused ? ACCUSED : OPENER;
        fund(OPENER, address(appeals), APPEAL_BOND);
        vm.prank(who);
        (bool taken,) = address(appeals).call(abi.encodeCall(appeals.appeal, (caseId, 2, positions)));
        require(taken == (accused && _now() < end), "another idea of an appeal");
        if (!taken) return;
        if (_now() < end) vm.warp(end);
        vm.expectPartialRevert(SlashCourt.WrongState.selector);
        court.execute(caseId);
        vm.warp(court.getCase(caseId).executeBy);
        vm.expectPartialRevert(SlashCourt.WrongState.selector);
        court.expire(caseId);
        vm.expectPartialRevert(AppealCourt.AlreadyAppealed.selector);
        vm.prank(ACCUSED);
        appeals.appeal(caseId, 2, positions);
    }

    function test_aLostAppealLeavesTheWholeExecuteWindowAndNoSecondAppeal() public {
        appealed(1_000, 3);
        defended(verifier(0), wrongPart(0, 1_000));
        pass(2 * DAY);
        appeals.lapse(caseId, verifier(0));
        SlashCourt.Case memory c = court.getCase(caseId);
        require(c.executeBy == c.vetoEndsAt + 7 * DAY, "another window");
        bytes32[] memory positions = cutOf(0, 100);
        vm.expectPartialRevert(AppealCourt.AlreadyAppealed.selector);
        vm.prank(ACCUSED);
        appeals.appeal(caseId, 100, positions);
        bytes memory cert = certificate(court.vetoDigest(caseId, "reason"), 3);
        court.veto(caseId, "reason", 0, cert);
        require(court.capLeft(ACCUSED, 0, runId) == CASE_PPM_MAX, "the cap is not given back");
    }

    function test_anAppealThatEndsAfterTheVetoWindowLeavesAWholeExecuteWindow() public {
        pass(3 * DAY - 1);
        appealed(1_000, 3);
        defended(verifier(0), 5);
        pass(2 * DAY);
        appeals.lapse(caseId, verifier(0));
        require(court.getCase(caseId).executeBy == _now() + 7 * DAY, "a shorter window");
        court.execute(caseId);
    }

    function test_onlyTheAppealCourtSuspendsAndResumes() public {
        vm.expectRevert(SlashCourt.OnlyAppeals.selector);
        court.suspend(caseId, ACCUSED);
        vm.expectRevert(SlashCourt.OnlyAppeals.selector);
        court.resume(caseId, true);
        vm.expectRevert(StakeVault.OnlyCourt.selector);
        vault.shareBond(caseId, OPENER, new address[](0));
    }

    function testFuzz_aCutHasItsPartsAndTheRejectedEnd(uint8 what) public {
        address one = verifier(0);
        appealed(1_000, HONEST);
        defended(one, 5);
        AppealCourt.Defence memory d = defenceOf(one);
        bytes32[] memory positions = cutOf(d.first, d.last);
        if (what & 1 != 0) positions = new bytes32[](positions.length + 1);
        if (what & 2 != 0) positions[positions.length - 1] = "another end";
        vm.prank(what & 4 != 0 ? OPENER : ACCUSED);
        (bool taken,) = address(appeals).call(abi.encodeCall(appeals.cut, (caseId, one, positions)));
        require(taken == (what & 7 == 0), "another idea of a cut");
    }

    function test_aDeploymentWhoseAppealsOutlastTheCapIsRefused() public {
        vm.expectRevert(AppealCourt.BadParams.selector);
        new AppealCourt(
            ID,
            ISlashCourt(address(court)),
            IVerifierSet(address(set)),
            IRunEscrow(address(escrow)),
            AppealCourt.Params(DAY, 3 * DAY, DRAW_DELAY, SEATS, APPEAL_BOND)
        ); // the court names another one
    }
}

/// @notice Random moves of all parties over one case, honest or not, with time between them.
contract AppealHandler is AppealWorld {
    bool public isAppealed;
    uint256 private immutable _supply;

    constructor() {
        prepare();
        openCase(caseId);
        (operators, lie) = (5_000, HONEST);
        _supply = token.totalSupply();
    }

    function doAppeal(uint32 where) external {
        lie = where % 2 == 0 ? HONEST : where % operators;
        bytes32[] memory positions = cutOf(0, operators);
        vm.prank(ACCUSED);
        (bool taken,) = address(appeals).call(abi.encodeCall(appeals.appeal, (caseId, operators, positions)));
        isAppealed = isAppealed || taken;
    }

    function doDefend(uint256 who, uint32 part) external {
        address one = verifier(who % 4);
        (Statement memory s, bytes memory sig) = step();
        bytes32[] memory positions = cutOf(0, operators);
        vm.prank(one);
        (bool taken,) =
            address(appeals).call(abi.encodeCall(appeals.defend, (caseId, part % 64, positions, s, sig)));
        taken;
    }

    function doMove(uint256 who, uint32 part) external {
        address one = verifier(who % 4);
        AppealCourt.Defence memory d = defenceOf(one);
        if (d.phase == AppealCourt.Phase.NONE || d.phase == AppealCourt.Phase.JURY) return;
        if (d.last == d.first) return;
        bytes32[] memory positions = cutOf(d.first, d.last);
        bool taken;
        vm.prank(ACCUSED);
        (taken,) = address(appeals).call(abi.encodeCall(appeals.cut, (caseId, one, positions)));
        vm.prank(one);
        (taken,) = address(appeals).call(abi.encodeCall(appeals.choose, (caseId, part % 64, positions)));
    }

    function doVote(uint256 who, uint256 juror_, bool isRight) external {
        address one = verifier(who % 4);
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        bool taken;
        (taken,) = address(appeals).call(abi.encodeCall(appeals.drawJury, (caseId, one)));
        bytes32 end = defenceOf(one).end;
        vm.prank(juror(juror_ % 4));
        (taken,) = address(appeals).call(abi.encodeCall(appeals.vote, (caseId, one, end, isRight)));
    }

    function doPass(uint32 duration) external {
        pass(duration % (2 * DAY));
    }

    function doEnd(uint256 who) external {
        bool taken;
        (taken,) = address(appeals).call(abi.encodeCall(appeals.lapse, (caseId, verifier(who % 4))));
        (taken,) = address(appeals).call(abi.encodeCall(appeals.conclude, (caseId)));
    }

    /// @notice What the vault holds is what it owes; the appeal court holds nothing.
    function isConserved() external view returns (bool) {
        (uint256 stake,) = vault.stakeOf(ACCUSED, 0);
        uint256 owed = vault.rewardsTotal() + vault.potsTotal() + vault.bondsTotal() + stake + 8 * MIN_VERIFIER_STAKE;
        return token.balanceOf(address(vault)) == owed && token.balanceOf(address(appeals)) == 0
            && token.totalSupply() == _supply;
    }

    /// @notice Whether time and anybody's calls end it all: every bond but the case's is free, and the case is open or
    ///         reversed.
    function endsByTime() external returns (bool) {
        if (!isAppealed) return true;
        for (uint256 round = 0; round < 2; round++) {
            pass(4 * DAY);
            for (uint256 i = 0; i < 4; i++) {
                (bool done,) = address(appeals).call(abi.encodeCall(appeals.lapse, (caseId, verifier(i))));
                done;
            }
        }
        if (outcome() == AppealCourt.State.OPEN) appeals.conclude(caseId);
        bool isOpen = caseState() == SlashCourt.State.OPEN;
        return vault.bondsTotal() == (isOpen ? CASE_BOND : 0)
            && (isOpen || caseState() == SlashCourt.State.VETOED);
    }
}

contract AppealInvariantTest {
    AppealHandler private handler;

    function setUp() public {
        handler = new AppealHandler();
    }

    function targetContracts() external view returns (address[] memory all) {
        all = new address[](1);
        all[0] = address(handler);
    }

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    function targetSelectors() external view returns (FuzzSelector[] memory all) {
        all = new FuzzSelector[](1);
        bytes4[] memory moves = new bytes4[](6);
        moves[0] = AppealHandler.doAppeal.selector;
        moves[1] = AppealHandler.doDefend.selector;
        moves[2] = AppealHandler.doMove.selector;
        moves[3] = AppealHandler.doVote.selector;
        moves[4] = AppealHandler.doPass.selector;
        moves[5] = AppealHandler.doEnd.selector;
        all[0] = FuzzSelector(address(handler), moves);
    }

    function invariant_all() external view {
        require(handler.isConserved(), "money is made or lost");
    }

    function afterInvariant() external {
        require(handler.endsByTime(), "something waits for ever");
        require(handler.isConserved(), "money is made or lost at the end");
    }
}
