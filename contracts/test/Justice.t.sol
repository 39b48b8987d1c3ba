// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {EpochSettlement} from "../src/EpochSettlement.sol";
import {Juries} from "../src/Juries.sol";
import {RunEscrow} from "../src/RunEscrow.sol";
import {SlashCourt} from "../src/SlashCourt.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {EpochResult, SlashOrder, Statement} from "../src/Statements.sol";
import {VerifierSet} from "../src/VerifierSet.sol";
import {World} from "./World.sol";

/// @notice Attacks on the court that must not pay: who judges, what a lie costs, and what an accusation earns.
contract JusticeTest is World {
    address private constant BUYER = address(0xB1);
    address private constant OPERATOR = address(0xA1);
    address private constant THIEF = address(0xBAD);
    address private constant CHALLENGER = address(0xC1);
    uint256 private constant HOT = 77;
    bytes32 private runId;

    function setUp() public {
        deploy();
        enlistJurors(4);
        fund(BUYER, address(escrow), 1e25);
        fund(OPERATOR, address(vault), 1e25);
        fund(CHALLENGER, address(settlement), 1e25);
        fund(CHALLENGER, address(court), 1e25);
        token.approve(address(settlement), type(uint256).max); // this contract proposes
        vm.prank(BUYER);
        runId = escrow.openRun(bytes32(0), 2_500, 1_000, 4, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
        bytes memory consent = signature(HOT, vault.delegationDigest(OPERATOR, vm.addr(HOT), 1));
        vm.prank(OPERATOR);
        vault.delegate(vm.addr(HOT), 1, consent);
    }

    function result(uint64 epoch, bytes32 previous, address payee) private view returns (EpochResult memory) {
        bytes32 root = settlement.leafOf(runId, epoch, 0, payee, 900);
        return EpochResult(ID, runId, epoch, 1, previous, root, "table", "model", 900);
    }

    function propose(EpochResult memory r) private returns (bytes32 digest) {
        digest = settlement.resultDigest(r);
        settlement.propose(r, 0, certificate(digest, 3));
    }

    function challenge(uint64 epoch) private {
        vm.prank(CHALLENGER);
        settlement.challenge(runId, epoch, "reason");
    }

    function judge(uint64 epoch, bool isRight) private {
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        settlement.drawJury(runId, epoch);
        EpochSettlement.Epoch memory e = settlement.getEpoch(runId, epoch);
        for (uint256 k = 0; k < e.jury.length; k++) {
            if (settlement.getEpoch(runId, epoch).state != EpochSettlement.State.CHALLENGED) return;
            vm.prank(e.jury[k]);
            (bool voted,) = address(settlement).call(abi.encodeCall(settlement.vote, (runId, epoch, e.digest, isRight)));
            voted; // refused to who has voted with its other seats
        }
    }

    function state(uint64 epoch) private view returns (EpochSettlement.State) {
        return settlement.getEpoch(runId, epoch).state;
    }

    // ---- results

    function test_anUnansweredChallengeDelaysPayAndEndsNothing() public {
        bytes32 first = propose(result(0, 0, OPERATOR));
        propose(result(1, first, OPERATOR));
        challenge(0);
        pass(3 * DAY);
        settlement.timeoutChallenge(runId, 0);
        pass(DAY);
        settlement.finalize(runId, 0);
        settlement.finalize(runId, 1);
        settlement.claim(runId, 0, oneRow(0, OPERATOR, 900));
        settlement.collectBond(CHALLENGER);
        require(token.balanceOf(CHALLENGER) == 2e25 - BOND / 2, "delay was free");
    }

    function test_everyUnansweredChallengeCostsTwiceTheOneBefore() public {
        propose(result(0, 0, OPERATOR));
        uint256 lost;
        for (uint256 level = 0; level < 6; level++) {
            challenge(0);
            pass(3 * DAY);
            settlement.timeoutChallenge(runId, 0);
            settlement.collectBond(CHALLENGER);
            lost += (uint256(BOND) << level) / 2;
            require(token.balanceOf(CHALLENGER) == 2e25 - lost, "another price of delay");
        }
        require(settlement.bondOf(runId, 0) == uint128(BOND) << 6, "a bond that does not double");
    }

    function test_aJurysErrorDoesNotBarTheOnlyCorrectResult() public {
        EpochResult memory r = result(0, 0, OPERATOR);
        bytes32 first = propose(r);
        propose(result(1, first, OPERATOR));
        vm.prank(BUYER);
        escrow.requestClose(runId);
        pass(DAY / 2);
        challenge(0);
        pass(2 * DAY); // the run's time is over
        judge(0, false);
        require(state(0) == EpochSettlement.State.NONE, "the result did not fall");
        vm.expectPartialRevert(RunEscrow.NotClosed.selector);
        escrow.refund(runId);
        propose(r);
        pass(DAY);
        settlement.finalize(runId, 0);
        settlement.finalize(runId, 1); // it names the same result, and is no orphan
        settlement.claim(runId, 0, oneRow(0, OPERATOR, 900));
    }

    function test_aResultThatFallsAgainCostsItsProposerTwiceAsMuch() public {
        uint256 before = token.balanceOf(address(this));
        EpochResult memory r = result(0, 0, THIEF);
        uint256 lost;
        for (uint256 level = 0; level < 4; level++) {
            propose(r);
            challenge(0);
            judge(0, false);
            lost += uint256(BOND) << level;
            require(before - token.balanceOf(address(this)) == lost, "another price of a wrong result");
        }
    }

    function test_aRightChallengeEarnsAndAWrongOnePays() public {
        bytes32 d = propose(result(0, 0, THIEF));
        challenge(0);
        judge(0, false);
        require(settlement.bondsOwed(CHALLENGER) == BOND + BOND / 2, "a right challenge earned nothing");
        propose(result(0, 0, OPERATOR));
        uint256 jurors;
        for (uint256 i = 0; i < 4; i++) {
            jurors += settlement.bondsOwed(juror(i));
        }
        require(jurors > BOND / 2 - SEATS && jurors <= BOND / 2, "the jury worked for nothing");
        challenge(0);
        judge(0, true);
        require(settlement.bondsOwed(CHALLENGER) == BOND + BOND / 2, "a wrong challenge had its bond back");
        require(settlement.bondsOwed(address(this)) == BOND, "its cost was not the proposer's");
        require(settlement.getEpoch(runId, 0).digest != d, "another result");
    }

    function test_anUpheldResultWaitsForAWholeWindow() public {
        propose(result(0, 0, OPERATOR));
        challenge(0);
        judge(0, true);
        require(state(0) == EpochSettlement.State.PROPOSED, "not upheld");
        pass(DAY - 1);
        vm.expectPartialRevert(EpochSettlement.TooEarly.selector);
        settlement.finalize(runId, 0);
        pass(1);
        settlement.finalize(runId, 0);
    }

    // ---- juries

    function test_aSignerOfTheResultNeverSitsOnItsJury() public {
        for (uint256 i = 0; i < 4; i++) {
            address member = address(uint160(0xE000 + i));
            uint256 end = set.entryCount();
            vm.prank(member);
            set.enlist(places(1, end));
        }
        vm.roll(vm.getBlockNumber() + 1);
        for (uint64 epoch = 0; epoch < 4; epoch++) {
            bytes32 previous = epoch == 0 ? bytes32(0) : settlement.getEpoch(runId, epoch - 1).digest;
            EpochResult memory r = result(epoch, previous, OPERATOR);
            r.total = 0;
            propose(r); // signed by members 0 to 2 in the order of their hot keys
            challenge(epoch);
            vm.roll(vm.getBlockNumber() + DRAW_DELAY);
            settlement.drawJury(runId, epoch);
            address[] memory jury = settlement.getEpoch(runId, epoch).jury;
            require(jury.length == SEATS, "a jury of another size");
            for (uint256 k = 0; k < jury.length; k++) {
                require(jury[k] >= address(0x70000) || jury[k] == address(uint160(0xE003)), "a signer judges itself");
            }
        }
    }

    function test_whereEverybodySignedThereIsNoJuryAndTimeDecides() public {
        deploy(); // without jurors
        setVerifiersOnly();
        propose(result(0, 0, OPERATOR));
        challenge(0);
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        vm.expectPartialRevert(VerifierSet.NoJury.selector);
        settlement.drawJury(runId, 0);
        pass(3 * DAY);
        settlement.timeoutChallenge(runId, 0);
        require(state(0) == EpochSettlement.State.PROPOSED, "an outage ended a result");
    }

    function setVerifiersOnly() private {
        for (uint256 i = 0; i < 4; i++) {
            vm.prank(address(uint160(0xE000 + i)));
            set.enlist(places(1, i));
        }
        vm.roll(vm.getBlockNumber() + 1);
        fund(BUYER, address(escrow), 1e25);
        fund(CHALLENGER, address(settlement), 1e25);
        token.approve(address(settlement), type(uint256).max);
        vm.prank(BUYER);
        runId = escrow.openRun(bytes32(0), 2_500, 1_000, 4, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
    }

    function test_whoEnlistsAfterTheChallengeIsNotDrawn() public {
        propose(result(0, 0, THIEF));
        challenge(0);
        address late = address(0x9999);
        fund(late, address(vault), 1e25);
        vm.prank(late);
        vault.stake(1, 1e25);
        for (uint256 i = 0; i < 20; i++) {
            uint256 end = set.entryCount();
            vm.prank(late);
            set.enlist(places(1, end));
        }
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        settlement.drawJury(runId, 0);
        address[] memory jury = settlement.getEpoch(runId, 0).jury;
        for (uint256 k = 0; k < jury.length; k++) {
            require(jury[k] != late, "a juror chose its case");
        }
    }

    function test_aJurorHasAnEntryForEachMinimumOfStakeAndNoMore() public {
        uint256 end = set.entryCount();
        vm.prank(juror(0));
        vm.expectPartialRevert(VerifierSet.NotStaked.selector);
        set.enlist(places(1, end));
        vm.prank(juror(1));
        vm.expectPartialRevert(VerifierSet.NotStaked.selector);
        set.enlist(places(1, 0)); // that place has stake, and there is none for another
        vm.prank(juror(0));
        vault.requestUnstake(1, MIN_VERIFIER_STAKE);
        fund(juror(1), address(vault), MIN_VERIFIER_STAKE);
        vm.prank(juror(1));
        vault.stake(1, MIN_VERIFIER_STAKE);
        require(set.roomForEntry() == 0, "an entry without stake keeps its place");
        vm.prank(juror(1));
        set.enlist(places(1, 0));
        require(set.entriesOf(juror(0)) == 0 && set.entriesOf(juror(1)) == 2, "another count of entries");
    }

    function test_entriesAreAddedManyAtOnceAndNeverMoreThanStakeBacks() public {
        address rich = address(uint160(0xF001));
        fund(rich, address(vault), 1e25);
        vm.prank(rich);
        vault.stake(1, 5 * MIN_VERIFIER_STAKE);
        uint256 before = set.entryCount();
        vm.prank(rich);
        vm.expectPartialRevert(VerifierSet.NotStaked.selector);
        set.enlist(places(6, type(uint256).max));
        require(set.entryCount() == before && set.entriesOf(rich) == 0, "a refused call leaves entries");

        vm.prank(rich);
        set.enlist(places(5, type(uint256).max));
        require(set.entryCount() == before + 5 && set.entriesOf(rich) == 5, "another count of entries");
    }

    function test_aPlaceThatIsTakenIsTheEndWhoeverComesFirst() public {
        uint256 end = set.entryCount();
        for (uint256 i = 0; i < 2; i++) {
            address late = address(uint160(0xF100 + i));
            fund(late, address(vault), MIN_VERIFIER_STAKE);
            vm.prank(late);
            vault.stake(1, MIN_VERIFIER_STAKE);
            vm.prank(late);
            set.enlist(places(1, end)); // both ask for the same place
            require(set.entriesOf(late) == 1 && set.entryCount() == end + i + 1, "an entry was lost");
        }
    }

    function test_aJurorVotesOnceAndAStrangerNever() public {
        bytes32 d = propose(result(0, 0, THIEF));
        challenge(0);
        vm.expectPartialRevert(Juries.TooEarlyToDraw.selector);
        settlement.drawJury(runId, 0);
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        settlement.drawJury(runId, 0);
        vm.expectPartialRevert(Juries.JuryIsDrawn.selector);
        settlement.drawJury(runId, 0);
        vm.expectPartialRevert(Juries.NotAJuror.selector);
        settlement.vote(runId, 0, d, true);
        address first = settlement.getEpoch(runId, 0).jury[0];
        vm.prank(first);
        vm.expectPartialRevert(EpochSettlement.WrongResult.selector);
        settlement.vote(runId, 0, "another", true);
        vm.prank(first);
        settlement.vote(runId, 0, d, true);
        if (state(0) != EpochSettlement.State.CHALLENGED) return; // it had most seats
        vm.prank(first);
        vm.expectPartialRevert(Juries.AlreadyVoted.selector);
        settlement.vote(runId, 0, d, false);
    }

    // ---- verifiers' stake

    function openRun(bytes32 spec) private {
        vm.prank(BUYER);
        escrow.openRun(spec, 1, 1, 1, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
    }

    function test_noRunOpensWhileAThirdOfItsJudgesHaveNoLotForSoLong() public {
        pass(60 * DAY + 1); // the first set's terms end a second before the run would
        vm.expectPartialRevert(VerifierSet.NotStaked.selector);
        openRun("too long");
        lockLot(address(uint160(0xE000)), 1, bytes32(uint256(1)), 0);
        lockLot(address(uint160(0xE001)), 1, bytes32(uint256(1)), 0);
        vm.expectPartialRevert(VerifierSet.NotStaked.selector);
        openRun("half lack one");
        lockLot(address(uint160(0xE002)), 1, bytes32(uint256(1)), 0);
        openRun("one member cannot stop it");
    }

    function test_aVerifiersLotStaysForItsTermAndEndsWithIt() public {
        address member = address(uint160(0xE000));
        vm.prank(member);
        vm.expectPartialRevert(StakeVault.TooEarly.selector);
        vault.release(member, 1, bytes32(uint256(1)));
        vm.prank(member);
        vm.expectPartialRevert(StakeVault.NotEnoughStake.selector);
        vault.requestUnstake(1, MIN_VERIFIER_STAKE);
        pass(107 * DAY - 1); // its term, and the evidence window
        vm.expectPartialRevert(StakeVault.TooEarly.selector);
        vault.release(member, 1, bytes32(uint256(1)));
        pass(1); // nobody ended the run, and it is not held for that
        vault.release(member, 1, bytes32(uint256(1)));
        require(vault.freeOf(member, 1) == MIN_VERIFIER_STAKE, "the stake never came back");
    }

    function rotateToAJuror() private {
        address[] memory next = new address[](1);
        next[0] = juror(0);
        set.rotate(next, 0, 0, certificate(set.rotationDigest(1, set.hashOf(next), 0), 3));
    }

    function test_nobodyIsSeatedWithoutHavingLockedALotForThatTerm() public {
        vm.expectPartialRevert(VerifierSet.NotStaked.selector);
        this.rotate_();
        lockLot(juror(0), 1, bytes32(uint256(2)), uint128(MIN_VERIFIER_STAKE));
        rotateToAJuror();
    }

    function rotate_() external {
        rotateToAJuror();
    }

    /// @notice For runs that are open too: a leaked key is worth nothing once its account has delegated to another.
    function test_aMemberSignsWithTheHotKeyItDelegatedLast() public {
        EpochResult memory r = result(0, 0, OPERATOR);
        bytes32 digest = settlement.resultDigest(r);
        bytes memory old = certificate(digest, 3);
        address member = set.members(1)[0];
        (uint256 leaked, uint256 fresh) = (hotKeys[0], 770);
        bytes memory consent = signature(fresh, vault.delegationDigest(member, vm.addr(fresh), 1));
        vm.prank(member);
        vault.delegate(vm.addr(fresh), 1, consent);

        vm.expectPartialRevert(VerifierSet.NotAMember.selector);
        set.verify(1, digest, 0, old);
        set.verify(1, digest, 0, sorted(digest, fresh));
        consent = signature(leaked, vault.delegationDigest(member, vm.addr(leaked), 2));
        vm.prank(member);
        vault.delegate(vm.addr(leaked), 2, consent); // it may change its mind; one key speaks at a time
        set.verify(1, digest, 0, old);
        vm.expectPartialRevert(VerifierSet.NotAMember.selector);
        set.verify(1, digest, 0, sorted(digest, fresh));
    }

    function sorted(bytes32 digest, uint256 key) private view returns (bytes memory cert) {
        bool isIn = false;
        for (uint256 i = 1; i < 4; i++) {
            if (!isIn && vm.addr(key) < vm.addr(hotKeys[i])) {
                cert = bytes.concat(cert, signature(key, digest));
                isIn = true;
            }
            cert = bytes.concat(cert, signature(hotKeys[i], digest));
        }
        if (!isIn) cert = bytes.concat(cert, signature(key, digest));
    }

    /// @notice Else a new hot key for each result would be a way out of the penalty.
    function test_twoResultsBySeveralHotKeysOfOneAccountAreADoubleResult() public {
        EpochResult memory a = result(0, 0, OPERATOR);
        EpochResult memory b = result(0, 0, address(0xBAD));
        bytes memory first = signature(hotKeys[0], settlement.resultDigest(a));
        address member = set.members(1)[0];
        bytes memory consent = signature(770, vault.delegationDigest(member, vm.addr(770), 1));
        vm.prank(member);
        vault.delegate(vm.addr(770), 1, consent);
        court.reportDoubleResult(a, first, b, signature(770, settlement.resultDigest(b)), 0);
        require(vault.banned(member), "a second key is a second innocence");
        bytes memory others = signature(hotKeys[1], settlement.resultDigest(b));
        vm.expectPartialRevert(SlashCourt.DifferentSigners.selector);
        court.reportDoubleResult(a, first, b, others, 0);
    }

    function test_aReplacedSetsLotsAreFreeAWindowAfterItsLastRun() public {
        address member = address(uint160(0xE000));
        lockLot(juror(0), 1, bytes32(uint256(2)), uint128(MIN_VERIFIER_STAKE));
        rotateToAJuror();
        vm.prank(BUYER);
        escrow.requestClose(runId);
        pass(2 * DAY);
        escrow.refund(runId);
        pass(7 * DAY - 1);
        vm.expectPartialRevert(StakeVault.TooEarly.selector);
        vault.release(member, 1, bytes32(uint256(1)));
        pass(1);
        vault.release(member, 1, bytes32(uint256(1)));
        require(vault.freeOf(member, 1) == MIN_VERIFIER_STAKE, "another sum");
    }

    // ---- operators' lots

    function seats(address who) private pure returns (address[] memory found) {
        found = new address[](1);
        found[0] = who;
    }

    function test_noRunOpensWithoutTheLotsOfItsOperators() public {
        vm.prank(OPERATOR);
        vault.stake(0, 150);
        bytes32 one = escrow.runIdOf(BUYER, "one");
        bytes32 two = escrow.runIdOf(BUYER, "two");
        uint64 deadline = uint64(_now() + 100 * DAY);
        vm.prank(BUYER);
        vm.expectPartialRevert(RunEscrow.NoLot.selector);
        escrow.openRun("one", 1, 1, 1, deadline, 1, 100, seats(OPERATOR)); // it never agreed
        lockLot(OPERATOR, 0, one, 100);
        vm.prank(BUYER);
        vm.expectPartialRevert(RunEscrow.NoLot.selector);
        escrow.openRun("one", 1, 1, 1, deadline, 1, 101, seats(OPERATOR)); // to so much
        pass(1);
        vm.prank(BUYER);
        vm.expectPartialRevert(VerifierSet.NotStaked.selector);
        escrow.openRun("one", 1, 1, 1, deadline + 1, 1, 100, seats(OPERATOR));
        vm.prank(BUYER);
        escrow.openRun("one", 1, 1, 1, deadline, 1, 100, seats(OPERATOR));
        vm.prank(OPERATOR); // one lot backs one run at a time
        vm.expectPartialRevert(StakeVault.NotEnoughStake.selector);
        vault.lock(0, two, 100, deadline);
        vm.prank(BUYER);
        vm.expectPartialRevert(RunEscrow.NoLot.selector);
        escrow.openRun("two", 1, 1, 1, deadline, 1, 100, seats(OPERATOR));
    }

    function test_anOperatorIsBoundForNoLongerThanItAgreed() public {
        vm.prank(OPERATOR);
        vault.stake(0, 100);
        bytes32 one = escrow.runIdOf(BUYER, "one");
        vm.prank(OPERATOR);
        vault.lock(0, one, 100, uint64(_now() + 40 * DAY - 1));
        vm.prank(BUYER);
        vm.expectPartialRevert(RunEscrow.NoLot.selector);
        escrow.openRun("one", 1, 1, 1, uint64(_now() + 40 * DAY), 1, 100, seats(OPERATOR));
        vm.prank(OPERATOR);
        vm.expectPartialRevert(StakeVault.BadUntil.selector);
        vault.lock(0, one, 0, uint64(_now() + 39 * DAY)); // no lot's time becomes shorter
        vm.prank(OPERATOR);
        vm.expectPartialRevert(StakeVault.BadUntil.selector);
        vault.lock(0, one, 0, uint64(_now() + 401 * DAY));
    }

    function test_aLotForARunThatWasNotOpenedIsFreeForItsOwnerAndNobodyElse() public {
        vm.prank(OPERATOR);
        vault.stake(0, 100);
        lockLot(OPERATOR, 0, "a run", 100);
        vm.expectPartialRevert(StakeVault.TooEarly.selector);
        vault.release(OPERATOR, 0, "a run"); // else a stranger keeps runs from being opened
        vm.prank(OPERATOR);
        vault.release(OPERATOR, 0, "a run");
        require(vault.freeOf(OPERATOR, 0) == 100, "another sum");
    }

    function test_aSlashReachesTheLotOfItsRunAndNothingElse() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1_000);
        lockLot(OPERATOR, 0, runId, 400);
        lockLot(OPERATOR, 0, "another run", 400);
        vm.prank(OPERATOR);
        uint256 ticket = vault.requestUnstake(0, 100);
        open("offence", OPERATOR, 0, 300_000);
        pass(3 * DAY);
        court.execute(offenceIn(runId, "offence"));
        require(lotOf(OPERATOR, 0, runId) == 280, "another share of the lot");
        require(lotOf(OPERATOR, 0, "another run") == 400, "the wrong lot");
        require(vault.freeOf(OPERATOR, 0) == 100 && vault.ticketValue(ticket) == 100, "stake of no run");
    }

    function test_aContradictionReachesEverything() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1_000);
        lockLot(OPERATOR, 0, runId, 400);
        lockLot(OPERATOR, 0, "another run", 400);
        vm.prank(OPERATOR);
        uint256 ticket = vault.requestUnstake(0, 100);
        Statement memory a = Statement(ID, runId, 0, 1, "s", "1");
        Statement memory b = Statement(ID, runId, 0, 1, "s", "2");
        bytes memory sigA = signature(HOT, court.statementDigest(a));
        bytes memory sigB = signature(HOT, court.statementDigest(b));
        court.reportEquivocation(a, sigA, b, sigB, 0);
        require(lotOf(OPERATOR, 0, "another run") == 0 && vault.freeOf(OPERATOR, 0) == 0, "something is left");
        pass(UNBONDING);
        uint256 before = token.balanceOf(OPERATOR);
        vm.prank(OPERATOR);
        vault.withdraw(ticket);
        vm.prank(OPERATOR);
        vault.release(OPERATOR, 0, "another run");
        require(token.balanceOf(OPERATOR) == before && vault.freeOf(OPERATOR, 0) == 0, "something came back");
    }

    function test_twoCertifiedResultsOfOneEpochCostTheirSignerItsStake() public {
        EpochResult memory a = result(0, 0, OPERATOR);
        EpochResult memory b = result(0, 0, THIEF);
        bytes32 first = settlement.resultDigest(a);
        bytes32 second = settlement.resultDigest(b);
        for (uint256 i = 0; i < 4; i++) {
            address account = vault.accountOf(vm.addr(hotKeys[i]));
            court.reportDoubleResult(a, signature(hotKeys[i], first), b, signature(hotKeys[i], second), 0);
            (uint256 active,) = vault.stakeOf(account, 1);
            require(vault.banned(account) && active == 0, "a double signature was free");
        }
        bytes memory one = signature(hotKeys[0], first);
        vm.expectPartialRevert(SlashCourt.NotAContradiction.selector);
        court.reportDoubleResult(a, one, a, one, 0);
        b.epoch = 1;
        bytes memory other = signature(hotKeys[0], settlement.resultDigest(b));
        vm.expectPartialRevert(SlashCourt.NotAContradiction.selector);
        court.reportDoubleResult(a, one, b, other, 0);
    }

    function test_aStrangersTwoResultsAreNoOffence() public {
        EpochResult memory a = result(0, 0, OPERATOR);
        EpochResult memory b = result(0, 0, THIEF);
        bytes memory one = signature(HOT, settlement.resultDigest(a));
        bytes memory other = signature(HOT, settlement.resultDigest(b));
        vm.expectPartialRevert(SlashCourt.UnknownSigner.selector);
        court.reportDoubleResult(a, one, b, other, 0);
    }

    // ---- accusations

    function open(bytes32 offence, address offender, uint8 role, uint32 ppm) private {
        SlashOrder memory r = SlashOrder(ID, runId, 1, offender, role, ppm, offenceIn(runId, offence), 0, CHALLENGER);
        bytes memory cert = certificate(court.slashOrderDigest(r), 3);
        vm.prank(CHALLENGER);
        court.openCase(r, 0, cert);
    }

    function test_noNumberOfCasesTakesMoreThanTheCapInThirtyDays() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1e24);
        lockLot(OPERATOR, 0, runId, 1e24);
        open("first", OPERATOR, 0, 200_000);
        open("second", OPERATOR, 0, 200_000); // the rest of the cap
        require(court.getCase(offenceIn(runId, "second")).ppm == 100_000, "another rest");
        SlashOrder memory r = SlashOrder(ID, runId, 1, OPERATOR, 0, 1, offenceIn(runId, "third"), 0, CHALLENGER);
        bytes memory cert = certificate(court.slashOrderDigest(r), 3);
        vm.prank(CHALLENGER);
        vm.expectPartialRevert(SlashCourt.AboveCap.selector);
        court.openCase(r, 0, cert);
        pass(3 * DAY);
        court.execute(offenceIn(runId, "first"));
        court.execute(offenceIn(runId, "second"));
        uint256 left = lotOf(OPERATOR, 0, runId);
        require(left >= 7e23, "above the cap");
        pass(27 * DAY);
        open("later", OPERATOR, 0, 200_000);
    }

    function test_aVetoedCaseUsesNothingOfTheCap() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1e24);
        lockLot(OPERATOR, 0, runId, 1e24);
        open("first", OPERATOR, 0, 300_000);
        bytes32 first = offenceIn(runId, "first");
        court.veto(first, "reason", 0, certificate(court.vetoDigest(first, "reason"), 3));
        require(court.capLeft(OPERATOR, 0, runId) == CASE_PPM_MAX, "a veto cost the cap");
    }

    /// @notice A quorum of one run cannot use up an offence's id of another: the node goes on to be punished there.
    function test_noRunUsesUpAnOffenceOfAnother() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1_000);
        lockLot(OPERATOR, 0, runId, 100);
        bytes32 theirs = offenceIn("another run", "offence");
        SlashOrder memory r = SlashOrder(ID, runId, 1, OPERATOR, 0, 1, theirs, 0, CHALLENGER);
        bytes memory cert = certificate(court.slashOrderDigest(r), 4);
        vm.prank(CHALLENGER);
        vm.expectPartialRevert(SlashCourt.OffenceOfAnotherRun.selector);
        court.openCase(r, 0, cert);
        require(!court.punished(theirs), "used up");
        open("offence", OPERATOR, 0, 1);
    }

    function refused(SlashOrder memory r) private {
        bytes memory cert = certificate(court.slashOrderDigest(r), 4);
        vm.prank(CHALLENGER);
        vm.expectPartialRevert(StakeVault.NoLot.selector);
        court.openCase(r, 0, cert);
    }

    function test_whoLockedNoLotForTheRunCannotBeAccusedInIt() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1_000);
        lockLot(OPERATOR, 0, "another run", 100);
        refused(SlashOrder(ID, runId, 1, OPERATOR, 0, 1, offenceIn(runId, "offence"), 0, CHALLENGER));
        refused(SlashOrder(ID, runId, 1, juror(0), 1, 1, offenceIn(runId, "offence"), 0, CHALLENGER)); // staked, and in no set
        refused(SlashOrder(ID, runId, 1, OPERATOR, 2, 1, offenceIn(runId, "offence"), 0, CHALLENGER));
        lockLot(OPERATOR, 0, runId, 100);
        open("offence", OPERATOR, 0, 1);
        open("a verifier's", address(uint160(0xE001)), 1, 1);
    }

    function test_aSetThatWasReplacedAccusesToTheEndOfTheWindowAndNotLater() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1_000);
        lockLot(OPERATOR, 0, runId, 100);
        lockLot(juror(0), 1, bytes32(uint256(2)), uint128(MIN_VERIFIER_STAKE));
        rotateToAJuror();
        pass(47 * DAY - 1);
        open("in time", OPERATOR, 0, 1);
        pass(1);
        SlashOrder memory r = SlashOrder(ID, runId, 1, OPERATOR, 0, 1, offenceIn(runId, "late"), 0, CHALLENGER);
        bytes memory cert = certificate(court.slashOrderDigest(r), 3);
        vm.prank(CHALLENGER);
        vm.expectPartialRevert(SlashCourt.WindowOver.selector);
        court.openCase(r, 0, cert);
    }

    function test_theRunsOwnSetDischargesAndNoLaterOne() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1_000);
        lockLot(OPERATOR, 0, runId, 100);
        lockLot(juror(0), 1, bytes32(uint256(2)), uint128(MIN_VERIFIER_STAKE));
        rotateToAJuror();
        bytes32 digest = court.dischargeDigest(runId, OPERATOR);
        vm.expectPartialRevert(VerifierSet.NotAMember.selector);
        court.discharge(runId, OPERATOR, 0, signature(1_000, digest)); // a quorum of the set that is current now
        court.discharge(runId, OPERATOR, 0, certificate(digest, 3));
        (, uint64 until,) = vault.lotOf(OPERATOR, 0, runId);
        require(until == _now(), "not discharged");
    }

    /// @notice In a run of its own, by a friend that committed first: at most the fee, not half of the stake.
    function test_reportingOneselfInAnOwnRunSavesTheFeeAtMost() public {
        address sybil = address(0x5151);
        fund(sybil, address(escrow), 1);
        vm.prank(sybil);
        bytes32 own = escrow.openRun("mine", 1, 1, 1, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
        vm.prank(OPERATOR);
        vault.stake(0, 1e24);
        Statement memory a = Statement(ID, own, 0, 1, "s", "1");
        Statement memory b = Statement(ID, own, 0, 1, "s", "2");
        bytes32 commitment = court.commitmentOf(sybil, court.equivocationId(vm.addr(HOT), own, 0, 1, "s"), "salt");
        vm.prank(sybil);
        court.commitReport(commitment);
        vm.roll(vm.getBlockNumber() + 1);
        bytes memory sigA = signature(HOT, court.statementDigest(a));
        bytes memory sigB = signature(HOT, court.statementDigest(b));
        vm.prank(sybil);
        court.reportEquivocation(a, sigA, b, sigB, "salt");
        require(vault.rewardsTotal() == FEE, "a self-report paid");
    }

    /// @notice A quorum that accuses gets the fee; what it takes from its victim is burnt or the buyer's.
    function test_anAccusersRewardIsAFeeWhateverIsTaken() public {
        vm.prank(OPERATOR);
        vault.stake(0, 1e24);
        lockLot(OPERATOR, 0, runId, 1e24);
        open("offence", OPERATOR, 0, 300_000);
        pass(3 * DAY);
        court.execute(offenceIn(runId, "offence"));
        pass(7 * DAY);
        court.payOut(offenceIn(runId, "offence"));
        require(vault.rewards(CHALLENGER) == FEE + CASE_BOND, "accusing pays");
    }
}
