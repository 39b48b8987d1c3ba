// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";

/// @notice Moving the one token of a deployment, any plain ERC20. What was booked is what arrived, or the call reverts.
library Tokens {
    using SafeERC20 for IERC20;

    error FeeOnTransfer(uint256 expected, uint256 arrived);

    /// @dev From the caller only: leave to take tokens is never used for somebody else's move.
    function pull(IERC20 token, uint256 amount) internal {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        uint256 arrived = token.balanceOf(address(this)) - before;
        if (arrived != amount) revert FeeOnTransfer(amount, arrived);
    }

    function push(IERC20 token, address to, uint256 amount) internal {
        if (amount != 0) token.safeTransfer(to, amount);
    }
}
