// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Permit} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Permit.sol";

/// @title The token of a deployment that names no coin: 6 decimals, permits by EIP-2612, whole supply minted once.
/// @notice No owner, no mint, no hooks, no fee on transfer.
contract AssayToken is ERC20Permit {
    string private constant NAME = "Assay Local Dollar";

    constructor(uint256 supply) ERC20(NAME, "aUSD") ERC20Permit(NAME) {
        _mint(msg.sender, supply);
    }

    function decimals() public pure override returns (uint8) {
        return 6;
    }
}
