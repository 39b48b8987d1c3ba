// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {AssayToken} from "../src/AssayToken.sol";
import {EpochSettlement} from "../src/EpochSettlement.sol";
import {IRunEscrow, ISlashCourt, IStakeVault, IVerifierSet} from "../src/Interfaces.sol";
import {RunEscrow} from "../src/RunEscrow.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {EpochResult} from "../src/Statements.sol";
import {Vm} from "./World.sol";

/// @notice Stands in for what a contract under proof asks of the others: every certificate is good, every
///         window is short, and what the settlement pays is added up.
contract Surroundings {
    address public token;
    uint32 public constant currentVersion = 1;
    uint64 public constant vetoWindow = 1;
    uint64 public constant executeWindow = 1;
    uint64 public constant margin = 1;
    uint64 public constant unbondingDelay = 365 days;
    uint256 public paid;
    uint256 public payments;

    function verify(uint32, bytes32, uint8, bytes calldata) external pure returns (uint256, uint256) {
        return (1, 1);
    }

    function requireStaked(uint64) external pure {}

    function minStake(uint8) external pure returns (uint256) {
        return 1;
    }

    function entryCount() external pure returns (uint256) {
        return 0;
    }

    function vault() external view returns (address) {
        return address(this);
    }

    function settlement() external view returns (address) {
        return msg.sender;
    }

    function setVersionOf(bytes32) external pure returns (uint32) {
        return 1;
    }

    function buyerOf(bytes32) external pure returns (address) {
        return address(0xB1);
    }

    function reserve(bytes32, uint64, uint128) external {}

    function payeeOf(address account) external pure returns (address) {
        return account;
    }

    function settle(bytes32, uint64) external {}

    function release(bytes32, uint128, uint64) external {}

    function returnUnclaimed(bytes32, uint128 amount) external {
        paid += amount;
    }

    function pay(bytes32, address[] calldata, uint128[] calldata amounts) external {
        paid += amounts[0];
        payments++;
    }
}

/// @notice Parts of I1 to I5 for every input at once: `make halmos`. A failed `assert` would be a counterexample; a move
///         that is refused changes nothing, and its path ends there.
abstract contract Symbolic {
    Vm internal constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);
    bytes32 internal constant ID = keccak256("deployment");
    AssayToken internal token;
    Surroundings internal around;

    function setUp() public virtual {
        vm.warp(1_000 days);
        token = new AssayToken(type(uint256).max);
        around = new Surroundings();
    }
}

contract SymbolicEscrow is Symbolic {
    RunEscrow private escrow;
    bytes32 private runId;
    address private constant PAYEE = address(0xC1);

    function setUp() public override {
        super.setUp();
        // This contract is buyer and settlement in one.
        escrow = new RunEscrow(ID, IERC20(address(token)), IVerifierSet(address(around)), address(this), 1 days);
        token.approve(address(escrow), type(uint256).max);
    }

    function _pay(bytes32 run, uint128 amount) private {
        (address[] memory accounts, uint128[] memory amounts) = (new address[](1), new uint128[](1));
        (accounts[0], amounts[0]) = (PAYEE, amount);
        escrow.pay(run, accounts, amounts);
    }

    /// @notice I1: after any reservation, payments, return and refund, the escrow holds what the books say.
    function check_theEscrowHoldsWhatItsBooksSay(
        uint128 budget,
        uint128 cap,
        uint128 more,
        uint128[3] calldata amounts,
        bool falls
    ) public {
        runId = escrow.openRun(0, budget, cap, 2, uint64(block.timestamp + 2 days), 1, 1, new address[](0));
        if (more != 0) escrow.topUp(runId, more);
        escrow.reserve(runId, 0, amounts[0]);
        if (falls) {
            escrow.release(runId, amounts[0], 0);
        } else {
            escrow.settle(runId, 0);
            _pay(runId, amounts[1]);
            escrow.returnUnclaimed(runId, amounts[2]);
        }
        _booksBalance(falls ? 0 : amounts[1]);
        vm.warp(block.timestamp + 3 days);
        escrow.refund(runId);
        _booksBalance(falls ? 0 : amounts[1]);
        RunEscrow.Run memory run = escrow.getRun(runId);
        assert(uint256(run.reserved) + run.paid + run.returned == run.budget);
    }

    /// @notice I2: what is reserved for two epochs is each within the cap and together within the budget,
    ///         and no more can be paid than was reserved.
    function check_paymentsStayInCapAndBudget(uint128 budget, uint128 cap, uint128[4] calldata amounts) public {
        runId = escrow.openRun(0, budget, cap, 2, uint64(block.timestamp + 2 days), 1, 1, new address[](0));
        escrow.reserve(runId, 0, amounts[0]);
        escrow.reserve(runId, 1, amounts[1]);
        assert(amounts[0] <= cap && amounts[1] <= cap);
        assert(uint256(amounts[0]) + amounts[1] <= budget);
        _pay(runId, amounts[2]);
        _pay(runId, amounts[3]);
        assert(uint256(amounts[2]) + amounts[3] <= uint256(amounts[0]) + amounts[1]);
        assert(token.balanceOf(PAYEE) == uint256(amounts[2]) + amounts[3]);
    }

    /// @notice I1, I5: whatever is done to one run, another run's books stay as they are.
    function check_runsDoNotTouch(bytes32 other, uint128 reserved, uint128 paid, uint128 back) public {
        runId = escrow.openRun(0, 1e18, 1e18, 2, uint64(block.timestamp + 2 days), 1, 1, new address[](0));
        bytes32 second = escrow.openRun(bytes32(uint256(1)), 2e18, 1e18, 2, uint64(block.timestamp + 2 days), 1, 1, new address[](0));
        require(other != second);
        escrow.reserve(other, 0, reserved);
        _pay(other, paid);
        escrow.returnUnclaimed(other, back);
        RunEscrow.Run memory run = escrow.getRun(second);
        assert(run.buyer == address(this) && run.budget == 2e18 && run.pending == 0);
        assert(run.reserved == 0 && run.paid == 0 && run.returned == 0);
    }

    /// @notice I1, I5: with a payment goes any permit, good or false, and it takes the caller's money alone, by what the
    ///         books grow: nobody else's, though the contract may take all of theirs.
    function check_aPermitTakesOnlyItsCallersMoney(
        uint256[2] calldata terms,
        uint8 v,
        bytes32[2] calldata signature,
        uint128 amount
    ) public {
        token.transfer(PAYEE, 1e18);
        vm.prank(PAYEE);
        token.approve(address(escrow), type(uint256).max);
        runId = escrow.openRun(0, 1e18, 1e18, 2, uint64(block.timestamp + 2 days), 1, 1, new address[](0));
        uint256 own = token.balanceOf(address(this));
        bytes memory call = abi.encodeCall(RunEscrow.topUp, (runId, amount));
        escrow.permitAndCall(terms[0], terms[1], v, signature[0], signature[1], call);
        assert(token.balanceOf(PAYEE) == 1e18);
        assert(token.allowance(PAYEE, address(escrow)) == type(uint256).max);
        assert(token.balanceOf(address(this)) == own - amount);
        assert(escrow.getRun(runId).budget == uint256(1e18) + amount);
        _booksBalance(0);
    }

    function _booksBalance(uint128 paid) private view {
        RunEscrow.Run memory run = escrow.getRun(runId);
        assert(uint256(run.reserved) + run.paid + run.returned <= run.budget);
        assert(run.paid == paid);
        assert(token.balanceOf(address(escrow)) == uint256(run.budget) - run.paid - run.returned);
    }
}

contract SymbolicSettlement is Symbolic {
    EpochSettlement private settlement;
    bytes32 private constant RUN = keccak256("run");

    struct Row {
        uint256 index;
        address account;
        uint128 amount;
    }

    function setUp() public override {
        super.setUp();
        settlement = new EpochSettlement(
            ID,
            IERC20(address(token)),
            IRunEscrow(address(around)),
            IVerifierSet(address(around)),
            ISlashCourt(address(around)),
            EpochSettlement.Params(1, 1, 1 days, 1, 3, 1, address(0xdEaD))
        );
        token.approve(address(settlement), 2);
    }

    /// @notice I2, I3: whatever row the verifiers signed, and for whatever total, it is paid at most once and
    ///         not above the total, and any other row not at all.
    function check_aRowIsPaidOnceAndWithinTheTotal(Row calldata a, Row calldata b, uint128 total) public {
        _final(settlement.leafOf(RUN, 0, a.index, a.account, a.amount), total);
        bool first = _claim(a);
        assert(first == (a.amount <= total));
        bool second = _claim(b);
        if (first) assert(!second);
        if (second) assert(a.index == b.index && a.account == b.account && a.amount == b.amount);
        assert(around.paid() == (first ? a.amount : 0) && around.payments() == (first ? 1 : 0));
        assert(settlement.getEpoch(RUN, 0).claimed == around.paid());
    }

    /// @notice I2, I3: what is not claimed in time goes back, to the unit, and cannot be claimed any more.
    function check_theSweepReturnsTheRest(Row calldata a, uint128 total, bool claims) public {
        _final(settlement.leafOf(RUN, 0, a.index, a.account, a.amount), total);
        if (claims) _claim(a);
        vm.warp(block.timestamp + 2 days);
        settlement.sweepUnclaimed(RUN, 0);
        assert(around.paid() == total);
        assert(!_claim(a));
    }

    /// @notice I3: nothing is paid before a result is final.
    function check_nothingIsPaidBeforeFinal(Row calldata a, uint128 total, bool challenged) public {
        _post(settlement.leafOf(RUN, 0, a.index, a.account, a.amount), total);
        if (challenged) {
            settlement.challenge(RUN, 0, 0);
        }
        assert(!_claim(a));
        assert(around.paid() == 0);
    }

    function _post(bytes32 root, uint128 total) private {
        settlement.propose(EpochResult(ID, RUN, 0, 1, 0, root, 0, 0, total), 0, "");
        assert(settlement.getEpoch(RUN, 0).total == total);
    }

    function _final(bytes32 root, uint128 total) private {
        _post(root, total);
        vm.warp(block.timestamp + 1);
        settlement.finalize(RUN, 0);
    }

    function _claim(Row calldata row) private returns (bool) {
        EpochSettlement.Row[] memory rows = new EpochSettlement.Row[](1);
        rows[0] = EpochSettlement.Row(row.index, row.account, row.amount, new bytes32[](0));
        try settlement.claim(RUN, 0, rows) {
            return true;
        } catch {
            return false;
        }
    }
}

contract SymbolicVault is Symbolic {
    StakeVault private vault;
    address private constant BUYER = address(0xB1);
    address private constant CHALLENGER = address(0xC1);

    function setUp() public override {
        super.setUp();
        // This contract is the one who stakes, and the court.
        vault = new StakeVault(
            ID,
            IERC20(address(token)),
            address(this),
            IRunEscrow(address(around)),
            StakeVault.Params(21 days, 1, 1, 200_000, 20, address(0xdEaD))
        );
        token.approve(address(vault), type(uint256).max);
    }

    /// @notice I4: one offence, one slash, of one lot and not above it; what is free or in another lot stays.
    function check_anOffenceIsSlashedOnce(bytes32 offence, bytes32 lot, uint32 ppm, uint256 again) public {
        vault.stake(0, 1_000);
        vault.lock(0, "another", 300, uint64(block.timestamp + 1));
        vault.lock(0, lot, 400, uint64(block.timestamp + 1));
        (uint256 before,,) = vault.lotOf(address(this), 0, lot);
        uint256 amount = vault.slash(address(this), 0, lot, ppm, offence, BUYER, CHALLENGER, 1);
        (uint256 left,,) = vault.lotOf(address(this), 0, lot);
        assert(amount <= before && left == before - amount && vault.freeOf(address(this), 0) == 300);
        if (lot != "another") {
            (uint256 other,,) = vault.lotOf(address(this), 0, "another");
            assert(other == 300);
        }
        try vault.slash(address(this), 0, lot, again, offence, BUYER, CHALLENGER, 1) {
            assert(false);
        } catch {}
    }
}
