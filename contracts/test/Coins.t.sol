// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {EpochSettlement} from "../src/EpochSettlement.sol";
import {EpochResult, SlashOrder} from "../src/Statements.sol";
import {Tokens} from "../src/Tokens.sol";
import {World} from "./World.sol";

/// @notice A plain coin without `burn`, which refuses the zero address as OpenZeppelin's do.
contract PlainCoin is ERC20 {
    uint8 private immutable _decimals;

    constructor(uint8 decimals_) ERC20("Coin", "COIN") {
        _decimals = decimals_;
        _mint(msg.sender, 1e30);
    }

    function decimals() public view override returns (uint8) {
        return _decimals;
    }
}

/// @notice One whose transfers return nothing.
contract SilentCoin {
    mapping(address => uint256) public balanceOf;
    mapping(address => mapping(address => uint256)) public allowance;

    constructor() {
        balanceOf[msg.sender] = 1e30;
    }

    function approve(address spender, uint256 amount) external {
        allowance[msg.sender][spender] = amount;
    }

    function transfer(address to, uint256 amount) external {
        _move(msg.sender, to, amount);
    }

    function transferFrom(address from, address to, uint256 amount) external {
        allowance[from][msg.sender] -= amount;
        _move(from, to, amount);
    }

    function _move(address from, address to, uint256 amount) private {
        balanceOf[from] -= amount;
        balanceOf[to] += amount;
    }
}

/// @notice One whose issuer can block an address.
contract BlockingCoin is PlainCoin(6) {
    mapping(address => bool) public isBlocked;

    function setBlocked(address who, bool blocked) external {
        isBlocked[who] = blocked;
    }

    function _update(address from, address to, uint256 amount) internal override {
        require(!isBlocked[from] && !isBlocked[to], "blocked");
        super._update(from, to, amount);
    }
}

/// @notice One that keeps a hundredth of each transfer from the time on at which its issuer wants it.
contract FeeCoin is PlainCoin(6) {
    bool public isOn;

    function setFee(bool on) external {
        isOn = on;
    }

    function _update(address from, address to, uint256 amount) internal override {
        uint256 fee = isOn && from != address(0) ? amount / 100 : 0;
        super._update(from, to, amount - fee);
        if (fee != 0) super._update(from, address(0xFEE), fee);
    }
}

/// @notice Every flow of money once, with each kind of coin: in, paid, refunded, forfeited, slashed and vetoed.
contract CoinsTest is World {
    address private constant BUYER = address(0xB1);
    address private constant OPERATOR = address(0xA1);
    address private constant CHALLENGER = address(0xC1);
    bytes32 private runId;

    function test_aPlainCoinWithSixDecimalsAndWithoutBurn() public {
        _life(new PlainCoin(6));
    }

    function test_aPlainCoinWithEighteenDecimals() public {
        _life(new PlainCoin(18));
    }

    function test_aCoinThatReturnsNothing() public {
        _life(IERC20(address(new SilentCoin())));
    }

    function test_aCoinWithABlockList() public {
        BlockingCoin coin = new BlockingCoin();
        coin.setBlocked(address(0xBAD), true);
        _life(coin);
    }

    /// @notice Nothing of it is ever booked: a deposit that arrives short is refused as a whole.
    function test_aCoinWithAFeeIsRefusedAtItsFirstDeposit() public {
        FeeCoin coin = new FeeCoin();
        deploy(coin);
        coin.setFee(true);
        fund(OPERATOR, address(vault), 1_000);
        vm.prank(OPERATOR);
        vm.expectRevert(abi.encodeWithSelector(Tokens.FeeOnTransfer.selector, 100, 99));
        vault.stake(0, 100);
        fund(BUYER, address(escrow), 1_000);
        vm.prank(BUYER);
        vm.expectRevert(abi.encodeWithSelector(Tokens.FeeOnTransfer.selector, 500, 495));
        escrow.openRun(0, 500, 500, 1, uint64(_now() + 40 * DAY), 1, 1, new address[](0));
    }

    /// @notice Each of the vaults' payments to a blocked account waits until that names another address, and goes there.
    function test_whoIsBlockedNamesAnotherAddressAndLosesNothing() public {
        BlockingCoin coin = new BlockingCoin();
        _open(coin);
        uint256 ticket = _leaving();
        _challenged();
        coin.setBlocked(OPERATOR, true);
        coin.setBlocked(BUYER, true);
        coin.setBlocked(CHALLENGER, true);
        vm.expectRevert(bytes("blocked"));
        settlement.claim(runId, 0, oneRow(0, OPERATOR, 1_000));
        vm.prank(address(0xBAD)); // names its own payee, and nobody else's
        escrow.namePayee(address(0xBAD));
        _name(OPERATOR, address(0xA2));
        _name(BUYER, address(0xB2));
        _name(CHALLENGER, address(0xC2));
        settlement.claim(runId, 0, oneRow(0, OPERATOR, 1_000));
        settlement.collectBond(CHALLENGER);
        vm.prank(BUYER);
        escrow.requestClose(runId);
        pass(UNBONDING);
        escrow.refund(runId);
        vm.prank(OPERATOR);
        vault.withdraw(ticket);
        require(token.balanceOf(address(0xA2)) == 1_000 + 50, "a row and stake");
        require(token.balanceOf(address(0xB2)) == 1_500, "a refund");
        require(token.balanceOf(address(0xC2)) == BOND / 2, "a bond");
        require(token.balanceOf(address(0xBAD)) == 0, "somebody else's");
        _name(OPERATOR, address(0));
        require(escrow.payeeOf(OPERATOR) == OPERATOR, "nobody goes back");
    }

    function _name(address who, address payee) private {
        vm.prank(who);
        escrow.namePayee(payee);
    }

    function _leaving() private returns (uint256 ticket) {
        vm.prank(OPERATOR);
        vault.stake(0, 50);
        vm.prank(OPERATOR);
        ticket = vault.requestUnstake(0, 50);
    }

    function _life(IERC20 coin) private {
        _open(coin);
        _challenged();
        _paid();
        require(token.balanceOf(SINK) == BOND / 2, "half of an unanswered challenge's bond is not in the sink");
        _slashed();
        vm.prank(BUYER);
        escrow.requestClose(runId);
        pass(2 * DAY);
        escrow.refund(runId);
        require(token.balanceOf(BUYER) == 1e6 - 1_000, "a buyer's rest");
        require(token.balanceOf(address(escrow)) == 0, "money stays in the escrow");
        require(token.balanceOf(address(settlement)) == 0, "money stays in the settlement");
    }

    function _open(IERC20 coin) private {
        deploy(coin);
        fund(OPERATOR, address(vault), 1e6);
        fund(BUYER, address(escrow), 1e6);
        fund(CHALLENGER, address(settlement), 1e6);
        fund(address(this), address(settlement), 0);
        fund(address(this), address(court), 0);
        vm.prank(OPERATOR);
        vault.stake(0, 10_000);
        runId = escrow.runIdOf(BUYER, 0);
        lockLot(OPERATOR, 0, runId, 10_000);
        address[] memory operators = new address[](1);
        operators[0] = OPERATOR;
        vm.prank(BUYER);
        escrow.openRun(0, 2_500, 1_000, 4, uint64(_now() + 40 * DAY), 1, 10_000, operators);
    }

    function _challenged() private {
        EpochResult memory r =
            EpochResult(ID, runId, 0, 1, 0, settlement.leafOf(runId, 0, 0, OPERATOR, 1_000), 0, 0, 1_000);
        settlement.propose(r, 0, certificate(settlement.resultDigest(r), 3));
        vm.prank(CHALLENGER);
        settlement.challenge(runId, 0, 0);
        pass(3 * DAY);
        settlement.timeoutChallenge(runId, 0);
        pass(DAY);
        settlement.finalize(runId, 0);
    }

    function _paid() private {
        settlement.claim(runId, 0, oneRow(0, OPERATOR, 1_000));
        settlement.collectBond(CHALLENGER);
        settlement.collectBond(address(this));
        require(token.balanceOf(OPERATOR) == 1e6 - 10_000 + 1_000, "a payee's row");
        require(token.balanceOf(CHALLENGER) == 1e6 - BOND / 2, "a challenger's rest");
    }

    function _slashed() private {
        uint256 sunk = token.balanceOf(SINK);
        for (uint256 i = 1; i <= 2; i++) {
            SlashOrder memory order =
                SlashOrder(ID, runId, 0, OPERATOR, 0, 100_000, offenceIn(runId, bytes32(i)), 0, address(0xE000));
            court.openCase(order, 0, certificate(court.slashOrderDigest(order), 3));
        }
        bytes32 second = offenceIn(runId, bytes32(uint256(2)));
        court.veto(second, 0, 0, certificate(court.vetoDigest(second, 0), 3));
        require(token.balanceOf(SINK) == sunk + CASE_BOND, "a vetoed case's bond is not in the sink");
        pass(3 * DAY);
        court.execute(offenceIn(runId, bytes32(uint256(1))));
        pass(7 * DAY);
        court.payOut(offenceIn(runId, bytes32(uint256(1))));
        uint256 burnt = 1_000 - 200 - FEE;
        require(token.balanceOf(SINK) == sunk + CASE_BOND + burnt, "a slash is not in the sink");
        vault.collect(address(0xE000));
        require(token.balanceOf(address(0xE000)) == FEE, "an accuser's fee");
    }
}
