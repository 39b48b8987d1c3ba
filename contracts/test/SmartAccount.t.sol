// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC1271} from "@openzeppelin/contracts/interfaces/IERC1271.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Directory} from "../src/Directory.sol";
import {EpochSettlement} from "../src/EpochSettlement.sol";
import {IRunEscrow, IStakeVault} from "../src/Interfaces.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {EpochResult, SlashOrder} from "../src/Statements.sol";
import {VerifierSet} from "../src/VerifierSet.sol";
import {World} from "./World.sol";

/// @notice An account that is a contract: it calls what its owner tells it to, and has no key.
/// @dev    What an ERC-4337 entry point calls ends in the same calls, from the same sender.
contract SmartAccount is IERC1271 {
    struct Call {
        address target;
        uint256 value;
        bytes data;
    }

    address private immutable _owner;

    error OnlyOwner();

    constructor(address owner_) {
        _owner = owner_;
    }

    function execute(address target, uint256 value, bytes calldata data) external {
        _call(Call(target, value, data));
    }

    function executeBatch(Call[] calldata calls) external {
        for (uint256 i = 0; i < calls.length; i++) {
            _call(calls[i]);
        }
    }

    function isValidSignature(bytes32 digest, bytes calldata given) external view returns (bytes4) {
        (address signer,,) = ECDSA.tryRecover(digest, given);
        return signer == _owner ? IERC1271.isValidSignature.selector : bytes4(0xffffffff);
    }

    function _call(Call memory call) private {
        if (msg.sender != _owner) revert OnlyOwner();
        (bool done, bytes memory answer) = call.target.call{value: call.value}(call.data);
        if (done) return;
        assembly ("memory-safe") {
            revert(add(answer, 32), mload(answer)) // what it was told goes on to the owner
        }
    }
}

/// @notice What a contract can do as an operator, a buyer, a verifier and a payee (docs/decisions/0060-smart-accounts.md).
contract SmartAccountTest is World {
    uint256 private constant OWNER = 0xA11CE;
    uint256 private constant HOT = 0x407;
    address private constant STRANGER = address(0xBAD);
    address private constant PAYEE = address(0xCAFE);
    uint256 private constant MONEY = 100_000;
    bytes32 private theCase;
    SmartAccount private account;
    address private me;

    function setUp() public {
        deploy();
        token.approve(address(settlement), type(uint256).max); // this contract proposes
        account = new SmartAccount(vm.addr(OWNER));
        me = address(account);
        token.transfer(me, MONEY);
    }

    /// @notice One call of the account, which its owner sends.
    function act(address target, bytes memory data) private {
        vm.prank(vm.addr(OWNER));
        account.execute(target, 0, data);
    }

    /// @notice An approval of exactly `amount`, and the call that takes it: one transaction, without a permit.
    function pay(address target, uint256 amount, bytes memory data) private {
        SmartAccount.Call[] memory calls = new SmartAccount.Call[](2);
        calls[0] = SmartAccount.Call(address(token), 0, abi.encodeCall(IERC20.approve, (target, amount)));
        calls[1] = SmartAccount.Call(target, 0, data);
        vm.prank(vm.addr(OWNER));
        account.executeBatch(calls);
        require(token.allowance(me, target) == 0, "something is left to take");
    }

    function stake(uint8 role, uint256 amount) private {
        pay(address(vault), amount, abi.encodeCall(vault.stake, (role, amount)));
    }

    function delegate() private {
        bytes memory consent = signature(HOT, vault.delegationDigest(me, vm.addr(HOT), 1));
        act(address(vault), abi.encodeCall(vault.delegate, (vm.addr(HOT), 1, consent)));
    }

    function lock(uint8 role, bytes32 commitment, uint128 amount) private {
        act(address(vault), abi.encodeCall(vault.lock, (role, commitment, amount, uint64(_now() + 100 * DAY))));
    }

    function openRun(address[] memory operators) private returns (bytes32 runId) {
        uint64 deadline = uint64(_now() + 40 * DAY);
        pay(address(escrow), 2_500, abi.encodeCall(escrow.openRun, (0, 2_500, 1_000, 4, deadline, 1, 1, operators)));
        return escrow.runIdOf(me, 0);
    }

    function propose(bytes32 runId) private returns (bytes32 digest) {
        EpochResult memory r = EpochResult(ID, runId, 0, 1, 0, settlement.leafOf(runId, 0, 0, me, 900), 0, 0, 900);
        digest = settlement.resultDigest(r);
        settlement.propose(r, 0, certificate(digest, 3));
    }

    function requirePaid(address who, uint256 before, uint256 amount) private view {
        require(token.balanceOf(who) == before + amount, "another sum arrived");
    }

    // ---- an operator

    function test_anAccountThatIsAContractStakesLocksAndLeaves() public {
        stake(0, 1_000);
        lock(0, "run", 600);
        require(lotOf(me, 0, "run") == 600, "no lot");
        act(address(vault), abi.encodeCall(vault.release, (me, 0, bytes32("run"))));
        act(address(vault), abi.encodeCall(vault.requestUnstake, (0, 1_000)));
        pass(UNBONDING);
        act(address(vault), abi.encodeCall(vault.withdraw, (vault.ticketCount())));
        requirePaid(me, 0, MONEY);
    }

    function test_theConsentToADelegationIsTheHotKeysAndNobodysElse() public {
        bytes memory owners = signature(OWNER, vault.delegationDigest(me, vm.addr(HOT), 1));
        vm.prank(vm.addr(OWNER));
        vm.expectRevert(abi.encodeWithSelector(StakeVault.BadConsent.selector, vm.addr(OWNER)));
        account.execute(address(vault), 0, abi.encodeCall(vault.delegate, (vm.addr(HOT), 1, owners)));
        delegate();
        require(vault.speaksFor(vm.addr(HOT)) == me, "its hot key does not speak for it");
    }

    function test_aStrangerMovesNothingOfIt() public {
        vm.prank(STRANGER);
        vm.expectRevert(SmartAccount.OnlyOwner.selector);
        account.execute(address(vault), 0, abi.encodeCall(vault.stake, (0, 1)));
    }

    function test_theDirectoryListsItsRecordsAndItsRuns() public {
        Directory directory = new Directory(ID, IRunEscrow(address(escrow)), IStakeVault(address(vault)));
        stake(0, 1_000);
        act(address(directory), abi.encodeCall(directory.announceRecord, ("peer", "record")));
        bytes32 runId = openRun(new address[](0));
        act(address(directory), abi.encodeCall(directory.announceRun, (runId, "run file")));
        require(directory.stakers(0, 1)[0] == me && directory.runs(0, 1)[0] == runId, "not listed");
    }

    // ---- a buyer

    function test_aRunOfAContractIsOpenedToppedUpClosedAndRefunded() public {
        bytes32 runId = openRun(new address[](0));
        pay(address(escrow), 500, abi.encodeCall(escrow.topUp, (runId, 500)));
        requirePaid(me, MONEY - 3_000, 0);
        act(address(escrow), abi.encodeCall(escrow.requestClose, (runId)));
        pass(2 * DAY);
        vm.prank(STRANGER);
        escrow.refund(runId);
        requirePaid(me, 0, MONEY);
    }

    // ---- a payee

    function test_whoeverClaimsARowOfAContractPaysTheContract() public {
        bytes32 runId = openRun(new address[](0));
        uint256 before = token.balanceOf(me);
        propose(runId);
        pass(DAY);
        settlement.finalize(runId, 0);
        vm.prank(STRANGER);
        settlement.claim(runId, 0, oneRow(0, me, 900));
        requirePaid(me, before, 900);
    }

    function test_aContractClaimsItselfAndNamesWhoIsPaid() public {
        bytes32 runId = openRun(new address[](0));
        propose(runId);
        pass(DAY);
        settlement.finalize(runId, 0);
        act(address(escrow), abi.encodeCall(escrow.namePayee, (PAYEE)));
        act(address(settlement), abi.encodeCall(settlement.claim, (runId, 0, oneRow(0, me, 900))));
        requirePaid(PAYEE, 0, 900);
    }

    // ---- a verifier

    function test_theHotKeyOfAContractSignsForItsSeat() public {
        stake(1, MIN_VERIFIER_STAKE);
        delegate();
        lock(1, bytes32(uint256(2)), uint128(MIN_VERIFIER_STAKE));
        address[] memory next = new address[](1);
        next[0] = me;
        set.rotate(next, 0, 0, certificate(set.rotationDigest(1, set.hashOf(next), 0), 3));
        (uint256 weight,) = set.verify(2, "anything", 0, signature(HOT, "anything"));
        require(weight == 1, "its seat counts for nothing");
        bytes memory owners = signature(OWNER, "anything"); // good for those who ask the account, and no contract does
        require(account.isValidSignature("anything", owners) == IERC1271.isValidSignature.selector, "not its owner's");
        vm.expectRevert(abi.encodeWithSelector(VerifierSet.NotAMember.selector, vm.addr(OWNER)));
        set.verify(2, "anything", 0, owners);
    }

    function test_aContractChallengesAndCollectsItsBond() public {
        bytes32 runId = openRun(new address[](0));
        uint256 before = token.balanceOf(me);
        propose(runId);
        pay(address(settlement), BOND, abi.encodeCall(settlement.challenge, (runId, 0, 0)));
        pass(3 * DAY);
        settlement.timeoutChallenge(runId, 0);
        act(address(settlement), abi.encodeCall(settlement.collectBond, (me)));
        requirePaid(me, before - BOND, BOND / 2);
    }

    function test_aContractVotesAsAJurorAndCollectsItsFee() public {
        stake(1, 3 * MIN_VERIFIER_STAKE);
        act(address(set), abi.encodeCall(set.enlist, (places(3, 0))));
        enlistJurors(4);
        bytes32 runId = openRun(new address[](0));
        bytes32 digest = propose(runId);
        fund(STRANGER, address(settlement), BOND);
        vm.prank(STRANGER);
        settlement.challenge(runId, 0, 0);
        vm.roll(vm.getBlockNumber() + DRAW_DELAY);
        settlement.drawJury(runId, 0);
        act(address(settlement), abi.encodeCall(settlement.vote, (runId, 0, digest, true)));
        uint256 before = token.balanceOf(me);
        address[] memory jury = settlement.getEpoch(runId, 0).jury;
        for (uint256 k = 0; settlement.getEpoch(runId, 0).state == EpochSettlement.State.CHALLENGED; k++) {
            vm.prank(jury[k]);
            try settlement.vote(runId, 0, digest, true) {} catch {} // who has voted with its other seats
        }
        uint256 fee = settlement.bondsOwed(me);
        require(fee != 0, "a juror without a fee");
        settlement.collectBond(me);
        requirePaid(me, before, fee);
    }

    // ---- a case

    function accused() private {
        bytes32 runId = escrow.runIdOf(me, 0);
        stake(0, 1_000);
        lock(0, runId, 600);
        address[] memory operators = new address[](1);
        operators[0] = me;
        openRun(operators);
        theCase = offenceIn(runId, "case");
        SlashOrder memory order = SlashOrder(ID, runId, 0, me, 0, 100_000, theCase, 0, me);
        bytes memory cert = certificate(court.slashOrderDigest(order), 3);
        pay(address(court), CASE_BOND, abi.encodeCall(court.openCase, (order, 0, cert)));
    }

    function test_aContractAppeals() public {
        accused();
        pay(address(appeals), APPEAL_BOND, abi.encodeCall(appeals.appeal, (theCase, 1, new bytes32[](1))));
        require(appeals.getAppeal(theCase).accused == me, "no appeal");
    }

    function test_aContractCollectsWhatACaseLeavesIt() public {
        accused();
        pass(court.vetoWindow());
        court.execute(theCase);
        pass(court.payoutDelay());
        court.payOut(theCase);
        uint256 before = token.balanceOf(me);
        uint256 owed = vault.rewards(me);
        require(owed != 0, "nothing is owed");
        act(address(vault), abi.encodeCall(vault.collect, (me)));
        requirePaid(me, before, owed);
    }
}
