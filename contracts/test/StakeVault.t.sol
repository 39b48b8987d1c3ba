// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {AssayToken} from "../src/AssayToken.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {IRunEscrow} from "../src/Interfaces.sol";
import {World} from "./World.sol";

/// @notice Three people, two roles, and a court that is this contract: any move in any order.
/// @dev What must hold at a move itself is written into `broken`, because a revert would be taken for a refusal.
contract StakeHandler is World {
    address[3] public people = [address(0xA1), address(0xA2), address(0xA3)];
    address[2] public payees = [address(0xB1), address(0xA1)]; // a buyer, and one who may be the offender too
    uint256[] public open; // tickets neither withdrawn nor cancelled
    uint64 public constant evidenceWindow = 7 * DAY; // as the court, which this contract is
    bytes32[2] public commitments = [bytes32("red"), bytes32("blue")];
    mapping(bytes32 commitment => uint64) public endOf_; // as the escrow
    mapping(address => mapping(uint8 => mapping(bytes32 => uint256))) public holds; // open cases
    mapping(address => mapping(uint8 => uint256)) public put;
    mapping(address => mapping(uint8 => uint256)) public out;
    mapping(address => mapping(uint8 => uint256)) public taken;
    uint256 public takenTotal;
    uint256 public collected;
    uint256 public offences;
    uint256 public bondsPut;
    uint256 public bondsBurnt;
    bytes32[] public pots; // neither paid out nor restored
    bytes32[] public locked; // bonds neither returned nor burnt
    string public broken;

    constructor() {
        vm.warp(1_000 * DAY);
        token = new AssayToken(1e30);
        vault = new StakeVault(
            ID,
            IERC20(address(token)),
            address(this),
            IRunEscrow(address(this)),
            StakeVault.Params(UNBONDING, 1, 1, 200_000, FEE, SINK)
        );
        for (uint256 i = 0; i < 3; i++) {
            fund(people[i], address(vault), 1e25);
        }
    }

    function payeeOf(address account) external pure returns (address) {
        return account;
    }

    function endOf(uint8, bytes32 commitment) external view returns (uint64) {
        return endOf_[commitment];
    }

    /// @notice A commitment begins, and ends now or later.
    function end(uint256 seed, uint64 when) external {
        endOf_[commitments[seed % 2]] = uint64(_now() + between(when, 0, 20 * DAY));
    }

    function owed() private view returns (uint256 sum) {
        for (uint256 i = 0; i < 2; i++) {
            sum += vault.rewards(payees[i]);
        }
    }

    function stake(uint256 seed, uint8 role, uint256 amount) external {
        (address who, uint8 in_) = (people[seed % 3], role % 2);
        amount = between(amount, 1, amount % 2 == 0 ? 7 : 1e12); // dust half the time
        (uint256 active, uint256 leaving) = vault.stakeOf(who, in_);
        vm.prank(who);
        try vault.stake(in_, amount) {
            if (vault.banned(who)) broken = "a banned account staked";
            put[who][in_] += amount;
            (uint256 activeNow, uint256 leavingNow) = vault.stakeOf(who, in_);
            if (activeNow != active + amount || leavingNow != leaving) broken = "staking moved something else";
        } catch {
            if (!vault.banned(who)) broken = "a stake was refused";
        }
    }

    function requestUnstake(uint256 seed, uint8 role, uint256 amount) external {
        (address who, uint8 in_) = (people[seed % 3], role % 2);
        uint256 free = vault.freeOf(who, in_);
        if (free == 0) return;
        amount = seed % 4 == 0 ? free : between(amount, 1, free);
        vm.prank(who);
        uint256 ticket = vault.requestUnstake(in_, amount);
        open.push(ticket);
        if (vault.ticketValue(ticket) != amount) broken = "a ticket is worth something else than was asked for";
    }

    function cancelUnstake(uint256 seed) external {
        if (open.length == 0) return;
        uint256 ticket = _forget(seed);
        (address who,,,) = vault.tickets(ticket);
        vm.prank(who);
        vault.cancelUnstake(ticket);
    }

    function withdraw(uint256 seed) external {
        if (open.length == 0) return;
        uint256 ticket = open[seed % open.length];
        (address who, uint8 role, uint64 readyAt,) = vault.tickets(ticket);
        uint256 before = token.balanceOf(who);
        vm.prank(who);
        try vault.withdraw(ticket) {
            if (_now() < readyAt) broken = "stake left before its time";
            out[who][role] += token.balanceOf(who) - before;
            _forget(seed);
        } catch {
            if (_now() >= readyAt) broken = "ripe stake was held";
        }
        vm.prank(who);
        try vault.withdraw(ticket) {
            broken = "a ticket paid twice";
        } catch {}
    }

    function lock(uint256 seed, uint8 role, uint256 amount, uint64 until) external {
        (address who, uint8 in_) = (people[seed % 3], role % 2);
        bytes32 commitment = commitments[(seed >> 8) % 2];
        uint256 free = vault.freeOf(who, in_);
        (uint256 before, uint64 bound,) = vault.lotOf(who, in_, commitment);
        amount = between(amount, 0, free + free / 8 + 1);
        uint64 to = uint64(_now() + between(until, 1, 60 * DAY));
        vm.prank(who);
        try vault.lock(in_, commitment, uint128(amount), to) {
            if (amount > free) broken = "more was locked than was free";
            if (to < bound) broken = "a lot's time became shorter";
            if (lotOf(who, in_, commitment) != before + amount) broken = "a lot of another size";
        } catch {
            if (amount != 0 && amount <= free && to >= bound) broken = "a lock was refused";
        }
    }

    function release(uint256 seed, uint8 role) external {
        (address who, uint8 in_) = (people[seed % 3], role % 2);
        bytes32 commitment = commitments[(seed >> 8) % 2];
        (uint256 amount, uint64 until, uint64 cases) = vault.lotOf(who, in_, commitment);
        if (until == 0) return;
        uint64 over = endOf_[commitment];
        bool unbegun = over == 0 && (seed >> 9) % 2 == 0;
        uint256 at_ = (over == 0 || over > until ? until : over) + evidenceWindow;
        amount += vault.freeOf(who, in_);
        vm.prank((seed >> 9) % 2 == 0 ? who : address(0xE1));
        try vault.release(who, in_, commitment) {
            if (cases != 0 || (_now() < at_ && !unbegun)) broken = "a lot left before its time";
            if (vault.freeOf(who, in_) != amount) broken = "a release of another size";
        } catch {
            if (cases == 0 && (_now() >= at_ || unbegun)) broken = "a lot was kept";
        }
    }

    function discharge(uint256 seed, uint8 role) external {
        (address who, uint8 in_) = (people[seed % 3], role % 2);
        bytes32 commitment = commitments[(seed >> 8) % 2];
        (uint256 before, uint64 bound, uint64 cases) = vault.lotOf(who, in_, commitment);
        try vault.discharge(who, in_, commitment) {
            if (bound <= _now()) broken = "who was bound to nothing was discharged";
        } catch {
            if (bound > _now()) broken = "a discharge was refused";
            return;
        }
        (uint256 amount, uint64 until, uint64 left) = vault.lotOf(who, in_, commitment);
        if (until != _now() || amount != before || left != cases) broken = "a discharge changed something else";
        vm.prank(people[seed % 3]);
        try vault.discharge(who, in_, commitment) {
            broken = "somebody else than the court discharged";
        } catch {}
    }

    function slash(uint256 seed, uint8 role, uint32 ppm) external {
        (address who, uint8 in_) = (people[seed % 3], role % 2);
        bytes32 commitment = commitments[(seed >> 8) % 2];
        (, uint64 until,) = vault.lotOf(who, in_, commitment);
        if (until == 0) return;
        (uint256 active, uint256 leaving) = vault.stakeOf(who, in_);
        uint256 amount = _slash(who, in_, commitment, between(ppm, 1, PPM), seed);
        (uint256 activeNow, uint256 leavingNow) = vault.stakeOf(who, in_);
        if (activeNow != active - amount || leavingNow != leaving) broken = "a slash reached more than its lot";
    }

    function _slash(address who, uint8 role, bytes32 commitment, uint256 share, uint256 seed)
        private
        returns (uint256 amount)
    {
        vault.hold(who, role, commitment);
        holds[who][role][commitment]++;
        uint256 lot = lotOf(who, role, commitment);
        bytes32 offence = bytes32(++offences);
        amount = vault.slash(
            who, role, commitment, share, offence, payees[seed % 2], payees[(seed >> 8) % 2], uint64(_now() + 1)
        );
        if (amount != (share * lot + PPM - 1) / PPM) broken = "a slash of another size";
        pots.push(offence);
        taken[who][role] += amount;
        takenTotal += amount;
        try vault.slash(who, role, commitment, share, offence, address(0), address(0), 1) {
            broken = "one offence slashed twice";
        } catch {}
    }

    function payOut(uint256 seed) external {
        if (pots.length == 0) return;
        bytes32 offence = _drop(pots, seed);
        (,,, uint256 amount,,,) = vault.pots(offence);
        _unhold(offence);
        uint256 before = vault.rewardsTotal() + token.balanceOf(SINK);
        vault.payOut(offence);
        if (vault.rewardsTotal() + token.balanceOf(SINK) != before + amount) broken = "a pot paid another sum";
        _isShut(offence);
    }

    function restore(uint256 seed) external {
        if (pots.length == 0) return;
        bytes32 offence = pots[seed % pots.length];
        (address who, uint8 role,, uint256 amount,,, bytes32 commitment) = vault.pots(offence);
        uint256 lot = lotOf(who, role, commitment);
        (uint256 active, uint256 leaving) = vault.stakeOf(who, role);
        try vault.restore(offence) {
            if (vault.banned(who)) broken = "who contradicted itself got a slash back";
            (uint256 activeNow, uint256 leavingNow) = vault.stakeOf(who, role);
            if (activeNow + leavingNow != active + leaving + amount) broken = "another sum was restored";
            if (lotOf(who, role, commitment) != lot + amount) broken = "a slash went back to somewhere else";
            _unhold(offence);
            taken[who][role] -= amount;
            takenTotal -= amount;
            _drop(pots, seed);
            _isShut(offence);
        } catch {
            if (!vault.banned(who)) broken = "a slash could not be undone";
        }
    }

    function lockBond(uint256 seed, uint96 amount) external {
        bytes32 id = bytes32(++offences);
        amount = uint96(between(amount, 1, 1e12));
        require(token.transfer(address(vault), amount));
        vault.lockBond(id, payees[seed % 2], amount);
        bondsPut += amount;
        locked.push(id);
    }

    function endBond(uint256 seed) external {
        if (locked.length == 0) return;
        bytes32 id = _drop(locked, seed);
        (, uint96 amount) = vault.bonds(id);
        if (seed % 3 == 0) {
            vault.burnBond(id);
            bondsBurnt += amount;
        } else {
            vault.returnBond(id);
        }
        try vault.returnBond(id) {
            broken = "a bond returned twice";
        } catch {}
    }

    function _drop(bytes32[] storage from, uint256 seed) private returns (bytes32 found) {
        uint256 place = seed % from.length;
        found = from[place];
        from[place] = from[from.length - 1];
        from.pop();
    }

    function _isShut(bytes32 offence) private {
        try vault.payOut(offence) {
            broken = "a pot paid twice";
        } catch {}
        try vault.restore(offence) {
            broken = "a pot that was shut was restored";
        } catch {}
    }

    function bar(uint256 seed, uint256 dice) external {
        if (dice % 16 != 0) return; // else nobody stays
        address who = people[seed % 3];
        if (vault.banned(who)) return;
        for (uint8 role = 0; role < 2; role++) {
            (uint256 active, uint256 leaving) = vault.stakeOf(who, role);
            taken[who][role] += active + leaving;
            takenTotal += active + leaving;
        }
        vault.bar(who, bytes32(++offences), payees[1]);
    }

    function _unhold(bytes32 offence) private {
        (address who, uint8 role,,,,, bytes32 commitment) = vault.pots(offence);
        vault.unhold(who, role, commitment);
        holds[who][role][commitment]--;
        (,, uint64 cases) = vault.lotOf(who, role, commitment);
        if (cases != holds[who][role][commitment]) broken = "another count of cases";
    }

    function collect(uint256 seed) external {
        address who = payees[seed % 2];
        uint256 due = vault.rewards(who);
        uint256 before = token.balanceOf(who);
        if (due != 0) vault.collect(who);
        if (token.balanceOf(who) != before + due) broken = "a reward of another size";
        collected += due;
    }

    function wait_(uint256 duration) external {
        pass(between(duration, 1, 12 * DAY));
    }

    /// @notice Everybody leaves with everything, asking nobody.
    function drain() external {
        while (pots.length != 0) {
            bytes32 offence = _drop(pots, 0);
            _unhold(offence);
            vault.payOut(offence);
        }
        pass(70 * DAY); // longer than anybody bound itself, and the evidence window
        for (uint256 i = 0; i < 3; i++) {
            for (uint8 role = 0; role < 2; role++) {
                for (uint256 k = 0; k < 2; k++) {
                    (, uint64 until,) = vault.lotOf(people[i], role, commitments[k]);
                    if (until != 0) vault.release(people[i], role, commitments[k]);
                }
                uint256 free = vault.freeOf(people[i], role);
                if (free == 0) continue;
                vm.prank(people[i]);
                open.push(vault.requestUnstake(role, free));
            }
        }
        pass(UNBONDING);
        while (locked.length != 0) {
            vault.returnBond(_drop(locked, 0));
        }
        for (uint256 i = 0; i < open.length; i++) {
            (address who,,,) = vault.tickets(open[i]);
            vm.prank(who);
            vault.withdraw(open[i]);
        }
        for (uint256 i = 0; i < 2; i++) {
            if (vault.rewards(payees[i]) != 0) vault.collect(payees[i]);
        }
    }

    function _forget(uint256 seed) private returns (uint256 ticket) {
        uint256 place = seed % open.length;
        ticket = open[place];
        open[place] = open[open.length - 1];
        open.pop();
    }

    // ---- what holds after every move

    function check() external view {
        booksBalance();
        ticketsAreCovered();
        lotsAreActiveStake();
        noMoveBrokeARule();
    }

    /// @notice I1: what the vault holds is stake, leaving stake, pots, bonds and rewards. I4: slashed and put up as
    ///         a bond is burnt, owed(), collected or still waiting.
    ///         I4, I5: what an account put in is what it took out, lost and still has, to the unit.
    function booksBalance() private view {
        uint256 stakes;
        for (uint256 i = 0; i < 3; i++) {
            for (uint8 role = 0; role < 2; role++) {
                address who = people[i];
                (uint256 active, uint256 leaving) = vault.stakeOf(who, role);
                require(
                    put[who][role] == out[who][role] + taken[who][role] + active + leaving,
                    "an account's stake does not add up"
                );
                require(!vault.banned(who) || active + leaving == 0, "a banned account has stake");
                stakes += active + leaving;
            }
        }
        uint256 waiting = vault.potsTotal() + vault.bondsTotal();
        require(token.balanceOf(address(vault)) == stakes + waiting + vault.rewardsTotal(), "I1: the vault's money");
        require(vault.rewardsTotal() == owed(), "I1: rewards");
        uint256 burnt = token.balanceOf(SINK);
        uint256 gone = burnt + vault.rewardsTotal() + collected + waiting;
        require(takenTotal + bondsPut == gone, "I4: slashed money");
        uint256 ended = takenTotal - vault.potsTotal();
        require((burnt - bondsBurnt) * 5 >= ended, "less than a fifth was burnt");
    }

    /// @notice I1: the tickets of an account in a role together are what is leaving.
    function ticketsAreCovered() private view {
        for (uint256 i = 0; i < 3; i++) {
            for (uint8 role = 0; role < 2; role++) {
                (, uint256 leaving) = vault.stakeOf(people[i], role);
                uint256 claims;
                for (uint256 j = 0; j < open.length; j++) {
                    (address who, uint8 in_,,) = vault.tickets(open[j]);
                    if (who == people[i] && in_ == role) claims += vault.ticketValue(open[j]);
                }
                require(claims == leaving, "tickets are not what is leaving");
            }
        }
    }

    /// @notice I1, I6: the lots of an account in a role and what is free of it together are its active stake, and a lot
    ///         counts the cases that are open against it.
    function lotsAreActiveStake() private view {
        for (uint256 i = 0; i < 3; i++) {
            address who = people[i];
            for (uint8 role = 0; role < 2; role++) {
                uint256 found = vault.freeOf(who, role);
                for (uint256 k = 0; k < 2; k++) {
                    (uint256 amount,, uint64 cases) = vault.lotOf(who, role, commitments[k]);
                    require(cases == holds[who][role][commitments[k]], "a lot counts other cases");
                    found += amount;
                }
                (uint256 active,) = vault.stakeOf(who, role);
                require(found == active, "lots are not active stake");
            }
        }
    }

    /// @notice I5, I6 and the size of a slash, judged at the moves themselves.
    function noMoveBrokeARule() private view {
        require(bytes(broken).length == 0, broken);
    }
}

contract StakeVaultTest is World {
    StakeHandler private handler;

    function setUp() public {
        handler = new StakeHandler();
        (token, vault) = (handler.token(), handler.vault());
    }

    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    struct Selectors {
        address target;
        bytes4[] selectors;
    }

    function targetSelectors() external view returns (Selectors[] memory targets) {
        targets = new Selectors[](1);
        targets[0] = Selectors(address(handler), new bytes4[](16));
        bytes4[16] memory moves = [
            StakeHandler.stake.selector,
            StakeHandler.requestUnstake.selector,
            StakeHandler.cancelUnstake.selector,
            StakeHandler.withdraw.selector,
            StakeHandler.slash.selector,
            StakeHandler.payOut.selector,
            StakeHandler.restore.selector,
            StakeHandler.lockBond.selector,
            StakeHandler.endBond.selector,
            StakeHandler.bar.selector,
            StakeHandler.lock.selector,
            StakeHandler.release.selector,
            StakeHandler.end.selector,
            StakeHandler.collect.selector,
            StakeHandler.wait_.selector,
            StakeHandler.discharge.selector
        ];
        for (uint256 i = 0; i < 16; i++) {
            targets[0].selectors[i] = moves[i];
        }
    }

    function invariant_all() external view {
        handler.check();
    }

    /// @notice I10: whatever happened, everybody can leave, with every unit.
    function afterInvariant() public {
        handler.drain();
        require(vault.rewardsTotal() + vault.potsTotal() + vault.bondsTotal() == 0, "I10: rewards are stuck");
        require(token.balanceOf(address(vault)) == 0, "I10: stake is stuck");
    }

    /// @notice A round trip without a slash pays exactly what was put in.
    function testFuzz_stakeComesBackToTheUnit(uint128 amount, uint128 part) public {
        uint256 whole = between(amount, 2, 1e24);
        uint256 first = between(part, 1, whole - 1);
        address who = handler.people(0);
        uint256 before = token.balanceOf(who);
        vm.prank(who);
        vault.stake(0, whole);
        vm.prank(who);
        uint256 one = vault.requestUnstake(0, first);
        vm.prank(who);
        uint256 two = vault.requestUnstake(0, whole - first);
        vm.warp(_now() + UNBONDING);
        vm.prank(who);
        vault.withdraw(one);
        vm.prank(who);
        vault.withdraw(two);
        require(token.balanceOf(who) == before, "not what was put in");
    }
}
