// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IStakeVault} from "../src/Interfaces.sol";
import {SlashCourt} from "../src/SlashCourt.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {SlashOrder, Statement} from "../src/Statements.sol";
import {VerifierSet} from "../src/VerifierSet.sol";
import {World} from "./World.sol";

/// @notice The court's bounds, its bonds and delays, and what a certificate is: I4, I6, I7 and I8 for any input.
contract CourtTest is World {
    address private constant OFFENDER = address(0xA1);
    address private constant BUYER = address(0xB1);
    address private constant CHALLENGER = address(0xC1);
    address private constant OPENER = address(0xF1);
    uint256 private constant HOT = 77;
    bytes32 private offence;
    bytes32 private runId;

    function setUp() public {
        deploy();
        fund(OFFENDER, address(vault), 1e25);
        fund(BUYER, address(escrow), 1e25);
        fund(OPENER, address(court), 1e25);
        vm.prank(BUYER);
        runId = escrow.openRun(bytes32(0), 2_500, 1_000, 4, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
        offence = offenceIn(runId, "offence");
        bytes memory consent = signature(HOT, vault.delegationDigest(OFFENDER, vm.addr(HOT), 1));
        vm.prank(OFFENDER);
        vault.delegate(vm.addr(HOT), 1, consent);
    }

    function staked(uint256 amount) private {
        vm.prank(OFFENDER);
        vault.stake(0, amount);
        lockLot(OFFENDER, 0, runId, uint128(amount));
    }

    function slashOrder(uint32 ppm) private view returns (SlashOrder memory) {
        return SlashOrder(ID, runId, 1, OFFENDER, 0, ppm, offence, bytes32(0), CHALLENGER);
    }

    function opened(uint32 ppm) private returns (SlashCourt.Case memory) {
        SlashOrder memory r = slashOrder(ppm);
        bytes memory cert = certificate(court.slashOrderDigest(r), 3);
        vm.prank(OPENER);
        court.openCase(r, 0, cert);
        return court.getCase(r.offenceId);
    }

    function fee(uint256 taken) private pure returns (uint256) {
        return taken * 3 / 10 < FEE ? taken * 3 / 10 : FEE;
    }

    function vetoed() private returns (bool taken) {
        bytes memory cert = certificate(court.vetoDigest(offence, "reason"), 3);
        (taken,) = address(court).call(abi.encodeCall(court.veto, (offence, "reason", 0, cert)));
    }

    /// @notice I4: a case takes its ppm of the stake, rounded up, and never above the cap; the parts make the whole.
    function testFuzz_aCaseTakesItsShareAndNoMore(uint128 stake, uint32 share) public {
        uint256 amount = between(stake, 1, 1e24);
        uint32 ppm = uint32(between(share, 1, CASE_PPM_MAX));
        staked(amount);
        uint256 sunk = token.balanceOf(SINK);
        SlashCourt.Case memory c = opened(ppm);
        vm.warp(c.vetoEndsAt);
        court.execute(offence);
        (uint256 left,) = vault.stakeOf(OFFENDER, 0);
        uint256 taken = amount - left;
        require(taken == (amount * ppm + PPM - 1) / PPM, "another share");
        require(token.balanceOf(SINK) == sunk && vault.rewardsTotal() == 0, "paid before its time");
        require(vault.potsTotal() == taken && vault.bondsTotal() == CASE_BOND, "another pot");
        vm.warp(court.getCase(offence).payableAt);
        court.payOut(offence);
        uint256 owed = vault.rewardsTotal() - CASE_BOND;
        require(token.balanceOf(SINK) - sunk + owed == taken, "the parts are not the whole");
        require(vault.rewards(BUYER) == taken / 5 && vault.rewards(CHALLENGER) == fee(taken), "another reward");
        require(vault.rewards(OPENER) == CASE_BOND, "another bond");
    }

    /// @notice A slash is paid out after its delay and not a second earlier, and a veto undoes it until then; the two
    ///         never both, and a veto leaves the stake to the unit what it was.
    function testFuzz_aSlashIsUndoneBeforeItIsPaidAndNeverAfter(uint128 stake, uint32 share, uint64 when) public {
        uint256 amount = between(stake, 1, 1e24);
        staked(amount);
        SlashCourt.Case memory c = opened(uint32(between(share, 1, CASE_PPM_MAX)));
        vm.warp(c.vetoEndsAt);
        court.execute(offence);
        uint64 payableAt = court.getCase(offence).payableAt;
        require(payableAt == _now() + court.payoutDelay(), "another delay");
        vm.warp(between(when, _now(), payableAt + DAY));
        uint256 sunk = token.balanceOf(SINK);
        bool undone = vetoed();
        (bool paid,) = address(court).call(abi.encodeCall(court.payOut, (offence)));
        require(undone == (_now() < payableAt) && paid == !undone, "at the wrong time");
        (uint256 active, uint256 leaving) = vault.stakeOf(OFFENDER, 0);
        require((active + leaving == amount) == undone, "a veto did not give back what was taken");
        if (undone) require(token.balanceOf(SINK) - sunk == CASE_BOND && vault.rewardsTotal() == 0, "a bond survived");
        require(vault.potsTotal() == 0 && vault.bondsTotal() == 0, "something is stuck");
    }

    /// @notice A veto frees the lot at once, if no other case holds it; the bond burns.
    function testFuzz_aVetoFreesTheLotAtOnceUnlessAnotherCaseHolds(bool another) public {
        staked(1_000);
        vm.warp(escrow.closesAtOf(runId) + 7 * DAY - 1); // the last second in which it can be accused
        opened(200_000);
        if (another) {
            SlashOrder memory r = slashOrder(1_000);
            r.offenceId = offenceIn(runId, "another");
            bytes memory cert = certificate(court.slashOrderDigest(r), 3);
            vm.prank(OPENER);
            court.openCase(r, 0, cert);
        }
        pass(1);
        uint256 sunk = token.balanceOf(SINK);
        require(vetoed() && !vetoed(), "no veto, or two");
        require(token.balanceOf(SINK) - sunk == CASE_BOND, "the bond did not burn");
        (bool left,) = address(vault).call(abi.encodeCall(vault.release, (OFFENDER, 0, runId)));
        require(left == !another, "held without a case, or free with one");
    }

    /// @notice Only an account that committed in an earlier block, within the window, is paid for a report.
    function testFuzz_aReportIsPaidToWhomeverCommittedIt(uint8 what, uint8 blocks, uint64 age) public {
        staked(1_000);
        Statement memory a = Statement(ID, runId, 1, 1, bytes32(uint256(7)), "one");
        Statement memory b = Statement(ID, runId, 1, 1, bytes32(uint256(7)), "two");
        bytes memory sigA = signature(HOT, court.statementDigest(a));
        bytes memory sigB = signature(HOT, court.statementDigest(b));
        bytes32 offence = court.equivocationId(vm.addr(HOT), runId, 1, 1, bytes32(uint256(7)));
        bytes32 salt = what & 1 == 0 ? bytes32("salt") : bytes32("another salt");
        address sender = what & 2 == 0 ? CHALLENGER : address(0xD1); // a copier
        bytes32 promised = court.commitmentOf(CHALLENGER, offence, "salt");
        vm.prank(CHALLENGER);
        court.commitReport(promised);
        vm.prank(address(0xD1));
        court.commitReport(promised); // copied as well
        vm.roll(vm.getBlockNumber() + blocks % 3);
        pass(between(age, 0, 2 * DAY));
        bool good = what & 3 == 0 && blocks % 3 != 0 && between(age, 0, 2 * DAY) < DAY;
        vm.prank(sender);
        (bool taken,) =
            address(court).call(abi.encodeCall(court.reportEquivocation, (a, sigA, b, sigB, salt)));
        require(taken == good, "another idea of a commitment");
        vm.prank(sender);
        if (!taken) court.reportEquivocation(a, sigA, b, sigB, 0); // without a commitment: slashed, unpaid
        require(vault.banned(OFFENDER), "not slashed");
        require(vault.rewards(BUYER) == 0, "a buyer was paid, which may be the offender");
        require(vault.rewards(CHALLENGER) == (good ? FEE : 0) && vault.rewards(sender) == (good ? FEE : 0), "paid");
    }

    function testFuzz_aRulingAboveTheCapOpensNothing(uint32 share) public {
        uint32 ppm = uint32(between(share, CASE_PPM_MAX + 1, type(uint32).max));
        SlashOrder memory r = slashOrder(ppm);
        bytes memory cert = certificate(court.slashOrderDigest(r), 4);
        vm.prank(OPENER);
        vm.expectPartialRevert(SlashCourt.AboveCap.selector);
        court.openCase(r, 0, cert);
    }

    /// @notice I6: until the last second in which a fault of its run can be brought to court the lot stays, and while a
    ///         case about it is open; then anybody releases it, and no case can be opened.
    function testFuzz_aLotStaysWhileItsRunCanBeAccused(uint64 when, bool accused) public {
        staked(1_000);
        vm.prank(OFFENDER);
        vm.expectPartialRevert(StakeVault.NotEnoughStake.selector);
        vault.requestUnstake(0, 1);
        uint64 end = escrow.closesAtOf(runId) + 7 * DAY;
        vm.warp(between(when, end - 2 * DAY, end + 2 * DAY));
        uint256 at_ = _now();
        SlashOrder memory r = slashOrder(300_000);
        bytes memory cert = certificate(court.slashOrderDigest(r), 3);
        bool opens;
        if (accused) {
            vm.prank(OPENER);
            (opens,) = address(court).call(abi.encodeCall(court.openCase, (r, 0, cert)));
            require(opens == (at_ < end), "accused at the wrong time");
        }
        (bool left,) = address(vault).call(abi.encodeCall(vault.release, (OFFENDER, 0, runId)));
        require(left == (at_ >= end), "left at the wrong time");
        require(vault.freeOf(OFFENDER, 0) == (left ? 1_000 : 0), "left with another sum");
        if (!opens) return;
        SlashCourt.Case memory c = court.getCase(offence);
        vm.warp(between(when >> 8, c.vetoEndsAt, c.executeBy - 1));
        court.execute(offence);
        vm.expectPartialRevert(StakeVault.LotHeld.selector);
        vault.release(OFFENDER, 0, runId);
        pass(7 * DAY);
        court.payOut(offence);
        if (_now() < end) vm.warp(end);
        vault.release(OFFENDER, 0, runId);
        require(vault.freeOf(OFFENDER, 0) == 700, "another sum after the slash");
    }

    function discharged(bytes32 run, address who, uint256 signatures) private returns (bool taken) {
        bytes memory cert = certificate(court.dischargeDigest(run, who), signatures);
        (taken,) = address(court).call(abi.encodeCall(court.discharge, (run, who, 0, cert)));
    }

    /// @notice Who is discharged in a run that goes on gets its lot an evidence window later, if no case keeps it: until
    ///         then it can be accused as before, and it never waits longer than it would have.
    function testFuzz_aDischargedLotLeavesAWindowLaterAndNoSooner(uint64 start, uint64 when, bool accused) public {
        staked(1_000);
        (, uint64 bound,) = vault.lotOf(OFFENDER, 0, runId);
        uint64 over = escrow.closesAtOf(runId);
        vm.warp(between(start, _now(), bound + DAY));
        uint256 at_ = _now();
        require(discharged(runId, OFFENDER, 3) == (at_ < bound), "discharged at the wrong time");
        (, uint64 until,) = vault.lotOf(OFFENDER, 0, runId);
        require(until == (at_ < bound ? at_ : bound), "a lot bound for longer");
        uint256 end = (until < over ? until : over) + 7 * DAY;
        vm.warp(between(when, at_ < end ? end - 6 * DAY : at_, (at_ < end ? end : at_) + 2 * DAY));
        bool opens;
        if (accused) {
            SlashOrder memory r = slashOrder(300_000);
            bytes memory cert = certificate(court.slashOrderDigest(r), 3);
            vm.prank(OPENER);
            (opens,) = address(court).call(abi.encodeCall(court.openCase, (r, 0, cert)));
            require(opens == (_now() < over + 7 * DAY), "accused at the wrong time");
        }
        (bool left,) = address(vault).call(abi.encodeCall(vault.release, (OFFENDER, 0, runId)));
        require(left == (_now() >= end && !opens), "left at the wrong time");
        require(vault.freeOf(OFFENDER, 0) == (left ? 1_000 : 0), "left with another sum");
        if (left && _now() < over + 7 * DAY) {
            SlashOrder memory late = slashOrder(1);
            bytes memory cert = certificate(court.slashOrderDigest(late), 3);
            vm.prank(OPENER);
            vm.expectPartialRevert(StakeVault.NoLot.selector);
            court.openCase(late, 0, cert);
        }
    }

    /// @notice A quorum of the run's set over this run and this account, and nothing else, discharges.
    function testFuzz_aDischargeIsOfOneRunAndOneAccount(uint8 what, uint256 change) public {
        staked(1_000);
        uint256 flip = between(change, 1, 200);
        (bytes32 run, address who) = (runId, OFFENDER);
        if (what & 1 != 0) run = bytes32(uint256(run) ^ flip);
        if (what & 2 != 0) who = address(uint160(who) ^ uint160(flip));
        bytes32 digest = what & 4 == 0 ? court.dischargeDigest(run, who) : court.vetoDigest(run, bytes32(uint256(uint160(who))));
        bytes memory cert = certificate(digest, what & 8 == 0 ? 3 : 2);
        (bool taken,) = address(court).call(abi.encodeCall(court.discharge, (runId, OFFENDER, 0, cert)));
        require(taken == (what & 15 == 0), "another idea of a discharge");
    }

    function test_nobodyIsDischargedTwiceOrWithoutALotOrBeforeTheRunIsOpened() public {
        bytes memory cert = certificate(court.dischargeDigest(runId, OFFENDER), 3);
        vm.expectPartialRevert(StakeVault.NoLot.selector);
        court.discharge(runId, OFFENDER, 0, cert);
        staked(1_000);
        court.discharge(runId, OFFENDER, 0, cert);
        vm.expectPartialRevert(StakeVault.NotBound.selector);
        court.discharge(runId, OFFENDER, 0, cert);
        bytes32 unopened = escrow.runIdOf(BUYER, "later");
        vm.prank(OFFENDER);
        vault.stake(0, 1_000);
        lockLot(OFFENDER, 0, unopened, 1_000);
        require(!discharged(unopened, OFFENDER, 4), "a run was over before it began");
        vm.expectRevert(StakeVault.OnlyCourt.selector);
        vault.discharge(OFFENDER, 0, runId);
    }

    /// @notice An account that locks for the run again is bound by its own will, and the old certificate unbinds it: no
    ///         seat stands behind such a lot. What a case holds stays through both.
    function test_anOldDischargeUnbindsALotThatWasLockedAgainAndFreesNoHeldOne() public {
        staked(1_000);
        bytes memory cert = certificate(court.dischargeDigest(runId, OFFENDER), 3);
        court.discharge(runId, OFFENDER, 0, cert);
        opened(200_000);
        lockLot(OFFENDER, 0, runId, 0);
        (, uint64 until, uint64 cases) = vault.lotOf(OFFENDER, 0, runId);
        require(until == _now() + 100 * DAY && cases == 1, "not bound again");
        pass(DAY);
        court.discharge(runId, OFFENDER, 0, cert);
        pass(7 * DAY);
        vm.expectPartialRevert(StakeVault.LotHeld.selector);
        vault.release(OFFENDER, 0, runId);
        court.execute(offence);
        require(lotOf(OFFENDER, 0, runId) == 800, "another share");
    }

    /// @notice Of a lot that was discharged and released, a contradiction still reaches everything.
    function test_aContradictionReachesWhatADischargeFreed() public {
        staked(1_000);
        require(discharged(runId, OFFENDER, 3), "not discharged");
        pass(7 * DAY);
        vault.release(OFFENDER, 0, runId);
        vm.prank(OFFENDER);
        vault.requestUnstake(0, 600);
        pass(UNBONDING - 1);
        Statement memory a = Statement(ID, runId, 1, 1, bytes32(uint256(7)), "one");
        Statement memory b = Statement(ID, runId, 1, 1, bytes32(uint256(7)), "two");
        bytes memory sigA = signature(HOT, court.statementDigest(a));
        bytes memory sigB = signature(HOT, court.statementDigest(b));
        court.reportEquivocation(a, sigA, b, sigB, 0);
        (uint256 active, uint256 leaving) = vault.stakeOf(OFFENDER, 0);
        require(active + leaving == 0, "something left");
    }

    /// @notice A case may expire at any later time, and what it gives back to the cap is never another case's.
    function testFuzz_aCaseExpiresHoweverLateAndLeavesALaterCaseCounted(uint64 when, uint32 share) public {
        staked(1_000);
        uint32 ppm = uint32(between(share, 1, CASE_PPM_MAX));
        uint256 start = _now();
        uint64 executeBy = opened(200_000).executeBy;
        uint256 again = between(when, start + 30 * DAY, start + 35 * DAY);
        vm.warp(again);
        SlashOrder memory r = slashOrder(ppm);
        r.offenceId = offenceIn(runId, "later");
        bytes memory cert = certificate(court.slashOrderDigest(r), 3);
        vm.prank(OPENER);
        court.openCase(r, 0, cert);
        require(_now() >= executeBy, "not late");
        court.expire(offence);
        require(court.getCase(offence).state == SlashCourt.State.EXPIRED, "not expired");
        require(court.capLeft(OFFENDER, 0, runId) == CASE_PPM_MAX - ppm, "the later case no longer counts");
    }

    /// @notice I8: a certificate over one slashOrder opens no other, whichever field differs.
    function testFuzz_aCertificateCoversEveryField(uint256 field, uint256 change) public {
        SlashOrder memory r = slashOrder(1_000);
        bytes memory cert = certificate(court.slashOrderDigest(r), 4);
        uint256 flip = between(change, 1, 200);
        field %= 9;
        if (field == 0) r.deploymentId = bytes32(uint256(r.deploymentId) ^ flip);
        if (field == 1) r.runId = bytes32(uint256(r.runId) ^ flip);
        if (field == 2) r.epoch ^= uint64(flip);
        if (field == 3) r.offender = address(uint160(r.offender) ^ uint160(flip));
        if (field == 4) r.role ^= 1;
        if (field == 5) r.ppm ^= uint32(flip);
        if (field == 6) r.offenceId = bytes32(uint256(r.offenceId) ^ flip);
        if (field == 7) r.evidenceHash = bytes32(uint256(r.evidenceHash) ^ flip);
        if (field == 8) r.challenger = address(uint160(r.challenger) ^ uint160(flip));
        vm.prank(OPENER);
        (bool taken,) = address(court).call(abi.encodeCall(court.openCase, (r, 0, cert)));
        require(!taken, "a certificate fitted another slash order");
    }

    /// @notice I7: a certificate is three or more of four members, each once, in order, and nobody else.
    function testFuzz_aQuorumIsThreeOfFourMembersEachOnce(uint8[5] memory picks, uint8 length, bytes32 digest)
        public
        view
    {
        bytes memory cert;
        bool good = true;
        address last;
        uint256 count = between(length, 0, 5);
        for (uint256 i = 0; i < count; i++) {
            uint256 pick = picks[i] % 16 == 0 ? 4 : picks[i] % 4; // now and then a stranger
            if (picks[0] % 2 == 0 && picks[i] % 16 != 0) pick = i < 4 ? i : 3; // half the time as it should be
            uint256 key = pick == 4 ? 99 : hotKeys[pick];
            cert = bytes.concat(cert, signature(key, digest));
            good = good && pick != 4 && vm.addr(key) > last;
            last = vm.addr(key);
        }
        (bool taken,) = address(set).staticcall(abi.encodeCall(VerifierSet.verify, (1, digest, 0, cert)));
        require(taken == (good && count >= 3), "another idea of a quorum");
    }

    /// @notice No loop over a set is longer than 64.
    function test_aSetHasAtMost64Members() public {
        address[] memory members = verifiers(65);
        vm.expectPartialRevert(VerifierSet.BadSetSize.selector);
        new VerifierSet(ID, IStakeVault(address(vault)), members);
        new VerifierSet(ID, IStakeVault(address(vault)), verifiers(64));
    }

    /// @notice Two statements slash if and only if they differ in the value and in nothing else.
    function testFuzz_onlyAContradictionIsEvidence(uint8 what, uint128 stake) public {
        uint256 amount = between(stake, 1, 1e24);
        staked(amount);
        Statement memory a = Statement(ID, runId, 1, 1, bytes32(uint256(7)), "one");
        Statement memory b = Statement(ID, runId, 1, 1, bytes32(uint256(7)), what & 1 == 0 ? bytes32("one") : bytes32("two"));
        if (what & 2 != 0) b.epoch = 2;
        if (what & 4 != 0) b.kind = 2;
        if (what & 8 != 0) b.slot = bytes32(uint256(8));
        if (what & 16 != 0) b.runId = bytes32(uint256(9));
        uint256 second = what & 32 != 0 ? HOT + 1 : HOT;
        bytes memory sigA = signature(HOT, court.statementDigest(a));
        bytes memory sigB = signature(second, court.statementDigest(b));
        (bool taken,) = address(court).call(abi.encodeCall(court.reportEquivocation, (a, sigA, b, sigB, 0)));
        require(taken == (what & 63 == 1), "another idea of a contradiction");
        (uint256 active, uint256 leaving) = vault.stakeOf(OFFENDER, 0);
        require(active + leaving == (taken ? 0 : amount), "another sum");
        require(vault.banned(OFFENDER) == taken, "banned for another reason");
    }
}
