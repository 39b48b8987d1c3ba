// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {EpochSettlement} from "../src/EpochSettlement.sol";
import {RunEscrow} from "../src/RunEscrow.sol";
import {EpochResult} from "../src/Statements.sol";
import {World} from "./World.sol";

/// @notice Two buyers' runs, four payees, and verifiers who sign anything: even a total that is not the table's sum.
/// @dev What must hold at a move itself is written into `broken`; a refusal is expected and swallowed.
contract SettlementHandler is World {
    uint32 public constant EPOCHS = 4;
    uint128 public constant CAP = 1_000;
    uint256 public constant ROWS = 4;
    uint256 public constant JURORS = 4;

    address[2] public buyers = [address(0xB1), address(0xB2)];
    address[4] public payees = [address(0xC1), address(0xC2), address(0xC3), address(0xC4)];
    address public challenger = address(0xD1);
    bytes32[] public runs;
    mapping(bytes32 digest => uint128[4]) private _tables;
    mapping(bytes32 digest => mapping(uint256 index => bool)) private _paid;
    mapping(bytes32 runId => mapping(uint64 epoch => bytes32 digest)) public finalDigest;
    mapping(bytes32 runId => mapping(uint64 epoch => uint256)) public claimed;
    mapping(address payee => uint256) public earned;
    mapping(bytes32 runId => mapping(uint64 epoch => uint256)) public proposerBond;
    mapping(bytes32 runId => mapping(uint64 epoch => EpochResult)) private _last; // what was proposed last
    mapping(bytes32 challengeId => uint256[2]) private _seats; // for wrong, for right
    uint256 public finals; // reached, so that a test can see that the moves lead somewhere
    uint256 public claims;
    uint256 public falls;
    uint256 public comebacks; // of a result that fell
    uint256 private _salt;
    string public broken;

    constructor() {
        deploy();
        fund(challenger, address(settlement), 1e25);
        token.approve(address(settlement), type(uint256).max); // this contract proposes
        enlistJurors(JURORS);
        for (uint256 i = 0; i < 3; i++) {
            address buyer = buyers[i % 2];
            if (i < 2) fund(buyer, address(escrow), 1e25);
            vm.prank(buyer);
            runs.push(escrow.openRun(bytes32(i), 2_500, CAP, EPOCHS, uint64(_now() + 40 * DAY), 1, 1, new address[](0)));
        }
    }

    function topUp(uint256 seed, uint128 amount) external {
        RunEscrow.Run memory before = escrow.getRun(_run(seed));
        vm.prank(buyers[seed / 7 % 2]); // the other buyer too
        try escrow.topUp(_run(seed), uint128(between(amount, 1, 500))) {
            RunEscrow.Run memory run = escrow.getRun(_run(seed));
            if (run.closesAt != before.closesAt || run.deadline != before.deadline) broken = "a gift moved a timer";
        } catch {}
    }

    function requestClose(uint256 seed, uint256 dice) external {
        if (dice % 8 != 0) return;
        vm.prank(buyers[seed % 2]);
        try escrow.requestClose(_run(seed)) {
            if (escrow.buyerOf(_run(seed)) != buyers[seed % 2]) broken = "a stranger closed a run";
        } catch {}
    }

    function refund(uint256 seed) external {
        RunEscrow.Run memory run = escrow.getRun(_run(seed));
        uint256 before = token.balanceOf(run.buyer);
        try escrow.refund(_run(seed)) {
            if (_now() < run.closesAt) broken = "a refund before the close";
            uint256 free = run.budget - run.reserved - run.paid - run.returned;
            if (token.balanceOf(run.buyer) - before != free) broken = "a refund of another size";
        } catch {}
    }

    function propose(uint256 seed, uint64 ahead, uint128 a, uint128 b, uint128 lie) external {
        EpochResult memory r = _result(_run(seed), ahead, seed);
        uint128[4] memory table = _table(a, b);
        for (uint256 i = 0; i < ROWS; i++) {
            r.total += table[i];
        }
        if (lie % 4 == 0) r.total = lie / 4 % 1_200; // below the sum, or above the cap
        bytes32[4] memory leaves = _leaves(r.runId, r.epoch, table);
        r.root = _pair(_pair(leaves[0], leaves[1]), _pair(leaves[2], leaves[3]));
        bytes32 digest = settlement.resultDigest(r);
        if (_propose(r, digest)) {
            _tables[digest] = table;
            _last[r.runId][r.epoch] = r;
        }
    }

    /// @notice What was proposed last for an epoch comes again: the same bytes, and so the same digest.
    function proposeAgain(uint256 seed, uint64 epoch) external {
        EpochResult memory r = _last[_run(seed)][epoch % EPOCHS];
        if (r.runId != 0 && _propose(r, settlement.resultDigest(r))) comebacks++;
    }

    /// @dev A proposal is taken exactly if the rules allow it, whatever fell before.
    function _propose(EpochResult memory r, bytes32 digest) private returns (bool isTaken) {
        uint128 free = _free(r.runId);
        uint128 bond = settlement.bondOf(r.runId, r.epoch);
        bool isNew = settlement.getEpoch(r.runId, r.epoch).state == EpochSettlement.State.NONE;
        bytes32 previous = r.epoch == 0 ? bytes32(0) : settlement.getEpoch(r.runId, r.epoch - 1).digest;
        bool follows = r.prevResult == previous && (r.epoch == 0 || previous != 0);
        bool isOpen = _now() < escrow.getRun(r.runId).closesAt && r.epoch < EPOCHS;
        bool isAllowed = isNew && follows && isOpen && r.total <= CAP && r.total <= free;
        try settlement.propose(r, 0, certificate(digest, 3)) {
            proposerBond[r.runId][r.epoch] = bond;
            isTaken = true;
        } catch {}
        if (isTaken != isAllowed) broken = isTaken ? "a proposal against the rules" : "a proposal was refused";
    }

    function challenge(uint256 seed, uint64 epoch) external {
        vm.prank(challenger);
        try settlement.challenge(_run(seed), epoch % EPOCHS, bytes32(0)) {} catch {}
    }

    /// @notice Each juror answers by its own bits of `dice`: right, wrong, or (one time in four) nothing.
    function judge(uint256 seed, uint64 epoch, uint256 dice) external {
        (bytes32 runId, uint64 nth) = (_run(seed), epoch % EPOCHS);
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        try settlement.drawJury(runId, nth) {} catch {}
        address[] memory jury = settlement.getEpoch(runId, nth).jury;
        for (uint256 k = 0; k < jury.length; k++) {
            uint256 mood = dice >> 2 * k & 3;
            if (mood != 0) _vote(runId, nth, jury, k, mood != 1);
        }
    }

    /// @dev A result falls, or stands, with the answer that makes more than half of the seats, and at no other.
    function _vote(bytes32 runId, uint64 epoch, address[] memory jury, uint256 k, bool isRight) private {
        EpochSettlement.Epoch memory e = settlement.getEpoch(runId, epoch);
        uint256[2] storage seats = _seats[keccak256(abi.encode(runId, epoch, e.bond))]; // no two challenges have one
        uint256 side = isRight ? 1 : 0;
        vm.prank(jury[k]);
        try settlement.vote(runId, epoch, e.digest, isRight) {
            for (uint256 j = 0; j < jury.length; j++) {
                if (jury[j] == jury[k]) seats[side]++;
            }
        } catch {
            return;
        }
        EpochSettlement.Epoch memory then = settlement.getEpoch(runId, epoch);
        if (2 * seats[side] <= SEATS) {
            if (then.state != EpochSettlement.State.CHALLENGED) broken = "half a jury decided";
            return;
        }
        if (then.state != (isRight ? EpochSettlement.State.PROPOSED : EpochSettlement.State.NONE)) {
            broken = "no answer of more than half a jury";
        }
        if (then.bond != 2 * e.bond) broken = "the next bond is not twice this one";
        if (isRight) return;
        falls++;
        if (escrow.getRun(runId).closesAt < _now() + DAY) broken = "no time to propose again";
    }

    function timeoutChallenge(uint256 seed, uint64 epoch) external {
        try settlement.timeoutChallenge(_run(seed), epoch % EPOCHS) {
            EpochSettlement.State state = settlement.getEpoch(_run(seed), epoch % EPOCHS).state;
            if (state != EpochSettlement.State.PROPOSED) broken = "an outage ended a result";
        } catch {}
    }

    function clearOrphan(uint256 seed, uint64 epoch) external {
        (bytes32 runId, uint64 nth) = (_run(seed), epoch % EPOCHS);
        bytes32 previous = nth == 0 ? bytes32(0) : settlement.getEpoch(runId, nth - 1).digest;
        EpochSettlement.Epoch memory e = settlement.getEpoch(runId, nth);
        try settlement.clearOrphan(runId, nth) {
            if (e.prevResult == previous) broken = "a result with its predecessor was cleared";
        } catch {}
    }

    function finalize(uint256 seed, uint64 epoch) public {
        (bytes32 runId, uint64 nth) = (_run(seed), epoch % EPOCHS);
        EpochSettlement.Epoch memory e = settlement.getEpoch(runId, nth);
        bool follows = nth == 0 || (e.prevResult != 0 && finalDigest[runId][nth - 1] == e.prevResult);
        bool isAllowed = e.state == EpochSettlement.State.PROPOSED && _now() >= e.until && follows;
        try settlement.finalize(runId, nth) {
            if (!isAllowed) broken = "final against the rules";
            if (finalDigest[runId][nth] != 0) broken = "an epoch became final twice";
            finalDigest[runId][nth] = e.digest;
            finals++;
        } catch {
            if (isAllowed) broken = "a result could not become final"; // what fell and came back among them
        }
    }

    /// @dev One row of the table; one time in three with more money, else one time in five with a thief's account.
    function _rows(bytes32 runId, uint64 epoch, bytes32 digest, uint256 index, uint128 more, uint256 thief)
        private
        view
        returns (EpochSettlement.Row[] memory rows)
    {
        bool isForged = more % 3 == 0;
        address payee = !isForged && thief % 5 == 0 ? address(0xBAD) : payees[index];
        rows = oneRow(index, payee, _tables[digest][index] + (isForged ? 1 + more % 9 : 0));
        rows[0].proof = _proof(runId, epoch, digest, index);
    }

    function claim(uint256 seed, uint64 epoch, uint256 index, uint128 more, uint256 thief) public {
        (bytes32 runId, uint64 nth) = (_run(seed), epoch % EPOCHS);
        EpochSettlement.Epoch memory e = settlement.getEpoch(runId, nth);
        EpochSettlement.Row[] memory rows = _rows(runId, nth, e.digest, index % ROWS, more, thief);
        EpochSettlement.Row memory row = rows[0];
        uint256 before = token.balanceOf(row.account);
        try settlement.claim(runId, nth, rows) {
            bool isInTable = row.account == payees[row.index] && row.amount == _tables[e.digest][row.index];
            if (!isInTable) broken = "a row that is not in the table was paid";
            if (e.state != EpochSettlement.State.FINAL) broken = "paid before final";
            if (_paid[e.digest][row.index]) broken = "a row was paid twice";
            if (token.balanceOf(row.account) != before + row.amount) broken = "a payment of another size";
            _paid[e.digest][row.index] = true;
            claimed[runId][nth] += row.amount;
            earned[row.account] += row.amount;
            claims++;
        } catch {}
    }

    function sweep(uint256 seed, uint64 epoch) external {
        EpochSettlement.Epoch memory e = settlement.getEpoch(_run(seed), epoch % EPOCHS);
        try settlement.sweepUnclaimed(_run(seed), epoch % EPOCHS) {
            if (_now() < e.until) broken = "swept before the claim period was over";
        } catch {}
    }

    function wait_(uint256 duration) external {
        pass(between(duration, 1 hours, 3 * DAY));
    }

    /// @notice Time passes and strangers press every button; nobody with a key does anything.
    function drain() external {
        pass(60 * DAY);
        for (uint256 i = 0; i < runs.length; i++) {
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                if (settlement.getEpoch(runs[i], epoch).state == EpochSettlement.State.CHALLENGED) {
                    settlement.timeoutChallenge(runs[i], epoch);
                }
            }
        }
        pass(DAY);
        for (uint256 i = 0; i < runs.length; i++) {
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                EpochSettlement.Epoch memory e = settlement.getEpoch(runs[i], epoch);
                bytes32 previous = epoch == 0 ? bytes32(0) : settlement.getEpoch(runs[i], epoch - 1).digest;
                if (e.state != EpochSettlement.State.PROPOSED) continue;
                if (e.prevResult != previous) settlement.clearOrphan(runs[i], epoch);
                else settlement.finalize(runs[i], epoch);
            }
        }
        pass(31 * DAY);
        for (uint256 i = 0; i < runs.length; i++) {
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                EpochSettlement.State state = settlement.getEpoch(runs[i], epoch).state;
                if (state == EpochSettlement.State.FINAL) settlement.sweepUnclaimed(runs[i], epoch);
            }
            try escrow.refund(runs[i]) {} catch {}
        }
        collectBond();
        if (settlement.bondsOwed(address(this)) != 0) settlement.collectBond(address(this));
        for (uint256 i = 0; i < JURORS; i++) {
            if (settlement.bondsOwed(juror(i)) != 0) settlement.collectBond(juror(i));
        }
    }

    function _owed() private view returns (uint256 sum) {
        sum = settlement.bondsOwed(challenger) + settlement.bondsOwed(address(this));
        for (uint256 i = 0; i < JURORS; i++) {
            sum += settlement.bondsOwed(juror(i));
        }
    }

    function collectBond() public {
        uint256 due = settlement.bondsOwed(challenger);
        uint256 before = token.balanceOf(challenger);
        if (due != 0) settlement.collectBond(challenger);
        if (token.balanceOf(challenger) != before + due) broken = "a bond of another size came back";
        if (settlement.bondsOwed(challenger) != 0) broken = "a bond can be collected twice";
    }

    // ---- tables

    function _run(uint256 seed) private view returns (bytes32) {
        return runs[seed % runs.length];
    }

    function _free(bytes32 runId) private view returns (uint128) {
        RunEscrow.Run memory run = escrow.getRun(runId);
        return run.budget - run.reserved - run.paid - run.returned;
    }

    /// @dev The next epoch without a result, or, one time in four, any.
    function _result(bytes32 runId, uint64 ahead, uint256 seed) private returns (EpochResult memory r) {
        uint64 epoch;
        while (epoch < EPOCHS && settlement.getEpoch(runId, epoch).state != EpochSettlement.State.NONE) epoch++;
        if (ahead % 4 == 0) epoch = ahead % (EPOCHS + 2);
        r.deploymentId = ID;
        r.runId = runId;
        r.epoch = epoch;
        r.setVersion = 1;
        r.prevResult = epoch == 0 ? bytes32(0) : settlement.getEpoch(runId, epoch - 1).digest;
        r.modelHash = keccak256(abi.encode(seed, ++_salt));
    }

    function _table(uint128 a, uint128 b) private pure returns (uint128[4] memory) {
        return [a % 300, b % 300, a / 300 % 300, b / 300 % 300];
    }

    function _leaves(bytes32 runId, uint64 epoch, uint128[4] memory table) private view returns (bytes32[4] memory all) {
        for (uint256 i = 0; i < ROWS; i++) {
            all[i] = settlement.leafOf(runId, epoch, i, payees[i], table[i]);
        }
    }

    function _proof(bytes32 runId, uint64 epoch, bytes32 digest, uint256 row)
        private
        view
        returns (bytes32[] memory proof)
    {
        bytes32[4] memory leaves = _leaves(runId, epoch, _tables[digest]);
        proof = new bytes32[](2);
        proof[0] = leaves[row ^ 1];
        proof[1] = row < 2 ? _pair(leaves[2], leaves[3]) : _pair(leaves[0], leaves[1]);
    }

    function _pair(bytes32 a, bytes32 b) private pure returns (bytes32) {
        return a < b ? keccak256(abi.encode(a, b)) : keccak256(abi.encode(b, a));
    }

    // ---- what holds after every move

    function check() external view {
        EpochSettlement.Epoch[4][3] memory all;
        for (uint256 i = 0; i < 3; i++) {
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                all[i][epoch] = settlement.getEpoch(runs[i], epoch);
            }
        }
        moneyIsWhereTheBooksSay(all);
        payoutsStayInTheirBounds(all);
        onlyRowsPay();
        juriesAreOutsiders(all);
        noMoveBrokeARule(all);
    }

    /// @notice I1: the escrow holds what runs have neither paid nor returned; the settlement holds
    ///         bonds at stake and bonds to give back.
    function moneyIsWhereTheBooksSay(EpochSettlement.Epoch[4][3] memory all) private view {
        uint256 held;
        uint256 bonds;
        for (uint256 i = 0; i < 3; i++) {
            RunEscrow.Run memory run = escrow.getRun(runs[i]);
            held += run.budget - run.paid - run.returned;
            uint256 reserved;
            uint256 pending;
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                EpochSettlement.Epoch memory e = all[i][epoch];
                if (e.state != EpochSettlement.State.NONE && e.state != EpochSettlement.State.SWEPT) {
                    reserved += e.total - e.claimed;
                }
                if (e.state == EpochSettlement.State.CHALLENGED) bonds += e.bond;
                if (e.state > EpochSettlement.State.NONE && e.state < EpochSettlement.State.FINAL) {
                    pending++;
                    bonds += proposerBond[runs[i]][epoch];
                }
            }
            require(run.reserved == reserved, "I1: reserved");
            require(run.pending == pending, "pending");
            require(uint256(run.reserved) + run.paid + run.returned <= run.budget, "I1: above the budget");
        }
        require(token.balanceOf(address(escrow)) == held, "I1: the escrow's money");
        bonds += _owed();
        require(token.balanceOf(address(settlement)) == bonds, "I1: the bonds");
    }

    /// @notice I2: claims <= total <= cap per epoch; all of a run's claims are what it paid, and fit its budget.
    function payoutsStayInTheirBounds(EpochSettlement.Epoch[4][3] memory all) private view {
        for (uint256 i = 0; i < 3; i++) {
            RunEscrow.Run memory run = escrow.getRun(runs[i]);
            uint256 paid;
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                EpochSettlement.Epoch memory e = all[i][epoch];
                uint256 sum = claimed[runs[i]][epoch];
                require(sum == e.claimed && sum <= e.total && e.total <= CAP, "I2: an epoch");
                paid += sum;
            }
            require(paid == run.paid && paid <= run.budget, "I2: a run");
        }
    }

    /// @notice I3: each payee has what its rows said, and nobody else has anything.
    function onlyRowsPay() private view {
        for (uint256 i = 0; i < 4; i++) {
            require(token.balanceOf(payees[i]) == earned[payees[i]], "I3: a payee");
        }
        require(token.balanceOf(address(0xBAD)) == 0, "I3: a stranger was paid");
    }

    /// @notice A jury is there only while its challenge is, has every seat or none, and is neither side's.
    function juriesAreOutsiders(EpochSettlement.Epoch[4][3] memory all) private pure {
        for (uint256 i = 0; i < 3; i++) {
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                EpochSettlement.Epoch memory e = all[i][epoch];
                if (e.jury.length == 0) {
                    require(e.voted == 0, "a vote of nobody");
                    continue;
                }
                require(e.state == EpochSettlement.State.CHALLENGED && e.drawFrom == 0, "a jury without a challenge");
                require(e.jury.length == SEATS && e.voted >> SEATS == 0, "a jury of another size");
                for (uint256 k = 0; k < SEATS; k++) {
                    require(e.jury[k] != e.challenger && e.jury[k] != e.proposer, "a side judges itself");
                    require(e.jury[k] >= juror(0) && e.jury[k] < juror(JURORS), "a signer judges itself");
                }
            }
        }
    }

    /// @notice I3, I5, I7 at the moves themselves; and what is final stays the one final result of its epoch.
    function noMoveBrokeARule(EpochSettlement.Epoch[4][3] memory all) private view {
        require(bytes(broken).length == 0, broken);
        for (uint256 i = 0; i < 3; i++) {
            for (uint64 epoch = 0; epoch < EPOCHS; epoch++) {
                EpochSettlement.Epoch memory e = all[i][epoch];
                bytes32 digest = finalDigest[runs[i]][epoch];
                if (digest == 0) continue;
                require(e.digest == digest && e.state >= EpochSettlement.State.FINAL, "I7: a final result changed");
                (bytes32 runId,) = settlement.finalModel(digest);
                require(runId == runs[i], "I9: a final result is not on record");
            }
        }
    }
}

contract SettlementTest is World {
    SettlementHandler private handler;

    function setUp() public {
        handler = new SettlementHandler();
        (token, escrow, settlement) = (handler.token(), handler.escrow(), handler.settlement());
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    struct Selectors {
        address target;
        bytes4[] selectors;
    }

    /// @dev Some moves stand in the list twice: they are the ones without which nothing else can happen.
    function targetSelectors() external view returns (Selectors[] memory targets) {
        bytes4[18] memory moves = [
            SettlementHandler.propose.selector,
            SettlementHandler.claim.selector,
            SettlementHandler.wait_.selector,
            SettlementHandler.finalize.selector,
            SettlementHandler.topUp.selector,
            SettlementHandler.requestClose.selector,
            SettlementHandler.refund.selector,
            SettlementHandler.challenge.selector,
            SettlementHandler.judge.selector,
            SettlementHandler.timeoutChallenge.selector,
            SettlementHandler.clearOrphan.selector,
            SettlementHandler.sweep.selector,
            SettlementHandler.collectBond.selector,
            SettlementHandler.proposeAgain.selector,
            SettlementHandler.propose.selector,
            SettlementHandler.claim.selector,
            SettlementHandler.claim.selector,
            SettlementHandler.finalize.selector
        ];
        targets = new Selectors[](1);
        targets[0] = Selectors(address(handler), new bytes4[](18));
        for (uint256 i = 0; i < 18; i++) {
            targets[0].selectors[i] = moves[i];
        }
    }

    function invariant_all() external view {
        handler.check();
    }

    /// @notice I10: by time alone, every unit leaves the escrow and every bond leaves the settlement.
    function afterInvariant() public {
        handler.drain();
        require(token.balanceOf(address(escrow)) == 0, "I10: a budget is stuck");
        require(token.balanceOf(address(settlement)) == 0, "I10: a bond is stuck");
    }

    /// @notice A total that does not fit its place in storage is refused, even within cap and budget.
    function test_aTotalIsKeptWholeOrRefused() public {
        deploy();
        address buyer = address(0xB1);
        fund(buyer, address(escrow), 1e28);
        token.approve(address(settlement), BOND);
        vm.prank(buyer);
        bytes32 runId = escrow.openRun(0, 1e28, 1e28, 1, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
        EpochResult memory r =
            EpochResult(ID, runId, 0, 1, 0, bytes32(uint256(1)), 0, bytes32(uint256(2)), uint128(1) << 88);
        bytes memory cert = certificate(settlement.resultDigest(r), 3);
        vm.expectPartialRevert(EpochSettlement.AboveTotal.selector);
        settlement.propose(r, 0, cert);

        r.total -= 1;
        settlement.propose(r, 0, certificate(settlement.resultDigest(r), 3));
        require(settlement.getEpoch(runId, 0).total == r.total, "another total was kept");
    }

    /// @notice The moves above do lead to payments; else the invariants would hold of nothing.
    function test_theHandlerReachesPayments() public {
        handler.propose(0, 1, 100 + 7 * 300, 200 + 9 * 300, 1);
        handler.wait_(2 * DAY);
        handler.finalize(0, 0);
        for (uint256 row = 0; row < 4; row++) {
            handler.claim(0, 0, row, 1, 1);
        }
        require(handler.finals() == 1 && handler.claims() == 4, "nothing was paid");
        require(escrow.getRun(handler.runs(0)).paid == 316, "another sum was paid");
        require(bytes(handler.broken()).length == 0, handler.broken());
    }

    /// @notice They lead to a jury that has a result fall, and to the same result again.
    function test_theHandlerReachesAFallAndAReturn() public {
        handler.propose(0, 1, 100 + 7 * 300, 200 + 9 * 300, 1);
        handler.challenge(0, 0);
        handler.judge(0, 0, 1); // one juror of four: nothing is decided
        require(handler.falls() == 0, "one juror decided");
        handler.judge(0, 0, 341); // all of them: wrong
        require(handler.falls() == 1, "nothing fell");
        handler.proposeAgain(0, 0);
        require(handler.comebacks() == 1, "a result did not come back");
        handler.check();
    }
}
