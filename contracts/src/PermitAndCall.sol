// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {IERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Permit.sol";
import {Address} from "@openzeppelin/contracts/utils/Address.sol";

/// @title A contract that takes tokens from its callers, which permit it (EIP-2612) in the transaction that pays.
abstract contract PermitAndCall {
    IERC20 public immutable token;

    constructor(IERC20 token_) {
        token = token_;
    }

    /// @notice Lets this contract take `value` of the caller's tokens until `deadline`, and makes one call to it as the
    ///         caller. A permit that fails is passed over: whoever saw it can have sent it before, and then the
    ///         allowance is there; where it is not, a call that takes tokens reverts.
    /// @param call Selector and arguments of a function of this contract, whose answer is returned.
    function permitAndCall(uint256 value, uint256 deadline, uint8 v, bytes32 r, bytes32 s, bytes calldata call)
        external
        returns (bytes memory)
    {
        try IERC20Permit(address(token)).permit(msg.sender, address(this), value, deadline, v, r, s) {} catch {}
        return Address.functionDelegateCall(address(this), call);
    }
}
