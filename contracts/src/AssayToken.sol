// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";
import {ERC20Burnable} from "@openzeppelin/contracts/token/ERC20/extensions/ERC20Burnable.sol";

/// @title The local chain's stand-in for a stable coin: 6 decimals, whole supply minted once.
/// @notice No owner, no mint, no hooks, no fee on transfer. It also carries `deploymentId`, so that a
///         client sees at a glance whether it talks to the chain it was configured for.
contract AssayToken is ERC20Burnable {
    bytes32 public immutable deploymentId;

    constructor(bytes32 deploymentId_, uint256 supply) ERC20("Assay Local Dollar", "aUSD") {
        deploymentId = deploymentId_;
        _mint(msg.sender, supply);
    }

    function decimals() public pure override returns (uint8) {
        return 6;
    }
}
