// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// @title The token of a deployment that names no coin: 6 decimals, whole supply minted once.
/// @notice No owner, no mint, no hooks, no fee on transfer.
contract AssayToken is ERC20 {
    constructor(uint256 supply) ERC20("Assay Local Dollar", "aUSD") {
        _mint(msg.sender, supply);
    }

    function decimals() public pure override returns (uint8) {
        return 6;
    }
}
