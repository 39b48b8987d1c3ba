// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {IERC20Errors} from "@openzeppelin/contracts/interfaces/draft-IERC6093.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {Errors} from "@openzeppelin/contracts/utils/Errors.sol";
import {AssayToken} from "../src/AssayToken.sol";
import {Guarded} from "../src/Guarded.sol";
import {PermitAndCall} from "../src/PermitAndCall.sol";
import {RunEscrow} from "../src/RunEscrow.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {EpochResult, SlashOrder} from "../src/Statements.sol";
import {PlainCoin} from "./Coins.t.sol";
import {World} from "./World.sol";

interface Chains {
    function chainId(uint256 id) external;
}

/// @notice As Dai: a permit with another signature, for all or nothing. By EIP-2612 it has no function.
contract AllowedCoin is PlainCoin(18) {
    function permit(address holder, address spender, uint256, uint256, bool allowed, uint8, bytes32, bytes32) external {
        _approve(holder, spender, allowed ? type(uint256).max : 0);
    }
}

/// @notice One whose permits are refused, as an issuer can that has paused them.
contract PausedCoin is PlainCoin(6) {
    function permit(address, address, uint256, uint256, uint8, bytes32, bytes32) external pure {
        revert("paused");
    }
}

/// @notice One that answers what it does not know with nothing, and does nothing.
contract SilentPermitCoin is PlainCoin(6) {
    fallback() external {}
}

/// @notice One that calls who it is about to pay, once for each time that it was told to.
contract HookCoin is PlainCoin(6) {
    address private _to;
    bytes private _call;

    function hook(address to, bytes calldata call) external {
        (_to, _call) = (to, call);
    }

    function permit(address owner, address spender, uint256 value, uint256, uint8, bytes32, bytes32) external {
        _approve(owner, spender, value);
    }

    function _update(address from, address to, uint256 amount) internal override {
        super._update(from, to, amount);
        if (_to == address(0)) return;
        address where = _to;
        _to = address(0);
        (bool done, bytes memory answer) = where.call(_call);
        if (done) return;
        // What it was told goes on to whoever moves.
        assembly ("memory-safe") {
            revert(add(answer, 32), mload(answer))
        }
    }
}

contract PermitTest is World {
    uint256 private constant KEY = 0xA11CE;
    bytes32 private constant PERMIT =
        keccak256("Permit(address owner,address spender,uint256 value,uint256 nonce,uint256 deadline)");
    address private payer = vm.addr(KEY);
    address private constant STRANGER = address(0xBAD);
    bytes32 private runId;

    function _ready(IERC20 coin) private {
        deploy(coin);
        token.transfer(payer, 1e6);
    }

    function _ready() private {
        _ready(new AssayToken(1e30));
    }

    // ---- one transaction for every move that pays

    function test_stakeARunAndItsTopUpAreOneTransactionEach() public {
        _open();
        (uint256 active,) = vault.stakeOf(payer, 0);
        require(active == 10_000, "stake");
        require(escrow.getRun(runId).budget == 2_500, "a budget");
        _pay(escrow, 300, abi.encodeCall(RunEscrow.topUp, (runId, 300)));
        require(escrow.getRun(runId).budget == 2_800, "a top up");
        _requireNothingAllowed();
    }

    function test_bondsAreOneTransactionEach() public {
        _open();
        EpochResult memory r = EpochResult(ID, runId, 0, 1, 0, settlement.leafOf(runId, 0, 0, payer, 1_000), 0, 0, 1_000);
        bytes memory cert = certificate(settlement.resultDigest(r), 3);
        _pay(settlement, BOND, abi.encodeCall(settlement.propose, (r, 0, cert)));
        require(settlement.getEpoch(runId, 0).proposer == payer, "a proposal");
        _pay(settlement, BOND, abi.encodeCall(settlement.challenge, (runId, 0, 0)));
        require(settlement.getEpoch(runId, 0).challenger == payer, "a challenge");
        bytes32 caseId = offenceIn(runId, "case");
        SlashOrder memory order = SlashOrder(ID, runId, 0, payer, 0, 100_000, caseId, 0, payer);
        cert = certificate(court.slashOrderDigest(order), 3);
        _pay(court, CASE_BOND, abi.encodeCall(court.openCase, (order, 0, cert)));
        _pay(appeals, APPEAL_BOND, abi.encodeCall(appeals.appeal, (caseId, 1, new bytes32[](1))));
        require(appeals.getAppeal(caseId).accused == payer, "an appeal");
        _requireNothingAllowed();
        require(token.balanceOf(payer) == 1e6 - 12_500 - 2 * BOND - CASE_BOND - APPEAL_BOND, "what was paid");
    }

    // ---- whose permit, for what, and when

    function test_aPermitThatSomebodySentBeforeStopsNobody() public {
        _ready();
        bytes memory given = _permit(vault, 100, _now(), KEY);
        (uint8 v, bytes32 r, bytes32 s) = _parts(given);
        IERC20Permit permits = IERC20Permit(address(token));
        uint256 until = _now();
        vm.prank(STRANGER);
        permits.permit(payer, address(vault), 100, until, v, r, s);
        _send(payer, vault, 100, until, given, abi.encodeCall(StakeVault.stake, (0, 100)));
        (uint256 active,) = vault.stakeOf(payer, 0);
        require(active == 100, "who was overtaken has not paid");
        _requireNothingAllowed();
    }

    function test_aPermitServesOnce() public {
        _ready();
        bytes memory given = _permit(vault, 100, _now(), KEY);
        _send(payer, vault, 100, _now(), given, abi.encodeCall(StakeVault.stake, (0, 100)));
        _refused(vault, 0, 100);
        _send(payer, vault, 100, _now(), given, abi.encodeCall(StakeVault.stake, (0, 100)));
    }

    function test_anExpiredPermitIsNone() public {
        _ready();
        bytes memory given = _permit(vault, 100, _now() - 1, KEY);
        _refused(vault, 0, 100);
        _send(payer, vault, 100, _now() - 1, given, abi.encodeCall(StakeVault.stake, (0, 100)));
    }

    function test_aPermitForAnotherChainIsNone() public {
        _ready();
        Chains(address(vm)).chainId(7);
        bytes memory given = _permit(vault, 100, _now(), KEY);
        Chains(address(vm)).chainId(31_337);
        _refused(vault, 0, 100);
        _send(payer, vault, 100, _now(), given, abi.encodeCall(StakeVault.stake, (0, 100)));
    }

    function test_aPermitForAnotherContractIsNone() public {
        _ready();
        bytes memory given = _permit(escrow, 100, _now(), KEY);
        _refused(vault, 0, 100);
        _send(payer, vault, 100, _now(), given, abi.encodeCall(StakeVault.stake, (0, 100)));
    }

    /// @notice Neither as its own, nor after having sent it: the contracts take from their caller alone.
    function test_nobodyPaysByAnothersPermit(uint256 value) public {
        _ready();
        value = between(value, 100, 1e6);
        bytes memory given = _permit(vault, value, _now(), KEY);
        bytes memory call = abi.encodeCall(StakeVault.stake, (0, 100));
        _refused(vault, 0, 100);
        _send(STRANGER, vault, value, _now(), given, call);
        (uint8 v, bytes32 r, bytes32 s) = _parts(given);
        IERC20Permit(address(token)).permit(payer, address(vault), value, _now(), v, r, s);
        _refused(vault, 0, 100);
        _send(STRANGER, vault, value, _now(), given, call);
        require(token.balanceOf(payer) == 1e6, "somebody else's money moved");
    }

    /// @notice What is permitted bounds what is taken; what is not taken can be taken for the payer's own calls alone.
    function test_noMoreIsTakenThanWasPermitted(uint256 value, uint256 amount) public {
        _ready();
        (value, amount) = (between(value, 0, 1_000), between(amount, 1, 1_000));
        bytes memory given = _permit(vault, value, _now(), KEY);
        if (value < amount) _refused(vault, value, amount);
        _send(payer, vault, value, _now(), given, abi.encodeCall(StakeVault.stake, (0, amount)));
        if (value < amount) return;
        require(token.balanceOf(address(vault)) == 4 * MIN_VERIFIER_STAKE + amount, "another amount");
        require(token.allowance(payer, address(vault)) == value - amount, "another rest");
    }

    // ---- the call that follows

    function test_theCallIsTheCallersAndNobodyElses() public {
        _ready();
        vm.expectRevert(StakeVault.OnlyCourt.selector);
        _bare(vault, abi.encodeCall(StakeVault.bar, (STRANGER, 0, payer)));
        vm.expectRevert(RunEscrow.OnlySettlement.selector);
        _bare(escrow, abi.encodeCall(RunEscrow.reserve, (0, 0, 1)));
        bytes memory answer = _bare(escrow, abi.encodeCall(RunEscrow.namePayee, (STRANGER)));
        require(keccak256(answer) == keccak256(abi.encode(bytes(""))), "an answer of nothing");
        require(escrow.payeeOf(payer) == STRANGER, "the caller's own");
    }

    function test_whatTheCallRefusesIsToldAndWhatItAnswersIsPassedOn() public {
        _ready();
        vm.expectRevert(abi.encodeWithSelector(StakeVault.BelowMinimum.selector, 1, MIN_VERIFIER_STAKE));
        _bare(vault, abi.encodeCall(StakeVault.stake, (1, 1)));
        vm.expectRevert(Errors.FailedCall.selector);
        _bare(vault, "");
        vm.expectRevert(Errors.FailedCall.selector);
        _bare(vault, abi.encodeCall(RunEscrow.refund, (runId)));
        bytes memory answer = _bare(vault, abi.encodeCall(StakeVault.minStake, (1)));
        require(abi.decode(abi.decode(answer, (bytes)), (uint256)) == MIN_VERIFIER_STAKE, "another answer");
    }

    function test_aCallInACallPaysOnceEach() public {
        _ready();
        bytes memory stake = abi.encodeCall(StakeVault.stake, (0, 100));
        bytes memory inner = abi.encodeCall(PermitAndCall.permitAndCall, (0, 0, 27, 0, 0, stake));
        _pay(vault, 100, inner);
        _requireNothingAllowed();
        _refused(vault, 0, 100);
        _bare(vault, inner);
    }


    function test_nobodyEntersAgainWithAPermitWhileTokensMove() public {
        HookCoin coin = new HookCoin();
        _ready(coin);
        coin.transfer(address(coin), 1_000);
        bytes memory stake = abi.encodeCall(StakeVault.stake, (0, 100));
        coin.hook(address(vault), abi.encodeCall(PermitAndCall.permitAndCall, (100, 0, 27, 0, 0, stake)));
        vm.expectRevert(Guarded.ReentrancyGuardReentrantCall.selector);
        _send(payer, vault, 100, 0, new bytes(65), stake);
        coin.transfer(STRANGER, 0); // the same call, while the vault moves nothing
        (uint256 active,) = vault.stakeOf(address(coin), 0);
        require(active == 100, "the hook does not call");
    }

    // ---- coins without it

    function test_aCoinThatHasNoSuchPermitIsPaidByApproval() public {
        _byApproval(new PlainCoin(6));
        _byApproval(new AllowedCoin());
        _byApproval(new PausedCoin());
        _byApproval(new SilentPermitCoin());
    }

    function _byApproval(IERC20 coin) private {
        _ready(coin);
        bytes memory call = abi.encodeCall(StakeVault.stake, (0, 100));
        _refused(vault, 0, 100);
        _bare(vault, call);
        vm.prank(payer);
        coin.approve(address(vault), 200);
        _bare(vault, call);
        vm.prank(payer);
        vault.stake(0, 100);
        (uint256 active,) = vault.stakeOf(payer, 0);
        require(active == 200, "stake");
    }

    // ---- inside

    function _open() private {
        _ready();
        _pay(vault, 10_000, abi.encodeCall(StakeVault.stake, (0, 10_000)));
        runId = escrow.runIdOf(payer, 0);
        lockLot(payer, 0, runId, 10_000);
        address[] memory operators = new address[](1);
        operators[0] = payer;
        uint64 deadline = uint64(_now() + 40 * DAY);
        bytes memory call = abi.encodeCall(RunEscrow.openRun, (0, 2_500, 1_000, 4, deadline, 1, 10_000, operators));
        bytes memory answer = _pay(escrow, 2_500, call);
        require(abi.decode(abi.decode(answer, (bytes)), (bytes32)) == runId, "another answer");
    }

    function _requireNothingAllowed() private view {
        address[5] memory all =
            [address(vault), address(escrow), address(settlement), address(court), address(appeals)];
        for (uint256 i = 0; i < all.length; i++) {
            require(token.allowance(payer, all[i]) == 0, "an allowance is left");
        }
    }

    function _refused(PermitAndCall who, uint256 allowed, uint256 needed) private {
        vm.expectRevert(
            abi.encodeWithSelector(IERC20Errors.ERC20InsufficientAllowance.selector, address(who), allowed, needed)
        );
    }

    /// @notice Permit and call of the payer.
    function _pay(PermitAndCall to, uint256 value, bytes memory call) private returns (bytes memory) {
        return _send(payer, to, value, _now(), _permit(to, value, _now(), KEY), call);
    }

    /// @notice A call of the payer behind a permit that is none.
    function _bare(PermitAndCall to, bytes memory call) private returns (bytes memory) {
        return _send(payer, to, 0, 0, new bytes(65), call);
    }

    function _send(
        address who,
        PermitAndCall to,
        uint256 value,
        uint256 deadline,
        bytes memory given,
        bytes memory call
    ) private returns (bytes memory answer) {
        (uint8 v, bytes32 r, bytes32 s) = _parts(given);
        bytes memory data = abi.encodeCall(PermitAndCall.permitAndCall, (value, deadline, v, r, s, call));
        bool done;
        vm.prank(who);
        (done, answer) = address(to).call(data);
        if (!done) {
            assembly ("memory-safe") {
                revert(add(answer, 32), mload(answer))
            }
        }
    }

    function _permit(PermitAndCall spender, uint256 value, uint256 deadline, uint256 key)
        private
        view
        returns (bytes memory)
    {
        IERC20Permit permits = IERC20Permit(address(token));
        bytes32 what =
            keccak256(abi.encode(PERMIT, vm.addr(key), address(spender), value, permits.nonces(vm.addr(key)), deadline));
        return signature(key, keccak256(abi.encodePacked(bytes2(0x1901), permits.DOMAIN_SEPARATOR(), what)));
    }

    function _parts(bytes memory given) private pure returns (uint8 v, bytes32 r, bytes32 s) {
        assembly ("memory-safe") {
            r := mload(add(given, 32))
            s := mload(add(given, 64))
            v := byte(0, mload(add(given, 96)))
        }
    }
}
