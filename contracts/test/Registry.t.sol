// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IEpochSettlement, IRunEscrow, IVerifierSet} from "../src/Interfaces.sol";
import {ModelRegistry} from "../src/ModelRegistry.sol";
import {World} from "./World.sol";

/// @notice An anchor of a ledger service's log is final, and only its sender can extend it.
contract RegistryTest is World {
    ModelRegistry private registry;
    address private constant LEDGER_SERVICE = address(0xA1);
    bytes32 private constant RUN = keccak256("run");

    function setUp() public {
        deploy();
        registry = new ModelRegistry(
            ID, IRunEscrow(address(escrow)), IEpochSettlement(address(settlement)), IVerifierSet(address(set))
        );
    }

    function testFuzz_anAnchoredLogOnlyGrows(uint64 first, uint64 second, bytes32 root, bytes32 other) public {
        (bool taken,) = _anchor(LEDGER_SERVICE, RUN, first, root);
        require(taken == (first != 0), "the first anchor is of at least one leaf");
        (bool again,) = _anchor(LEDGER_SERVICE, RUN, second, other);
        require(again == (second > first), "a log did not grow");
        (uint64 size, bytes32 kept) = registry.logAnchor(LEDGER_SERVICE, RUN);
        require(size == (again ? second : first), "another size");
        require(kept == (again ? other : taken ? root : bytes32(0)), "another root");
    }

    function testFuzz_nobodyAnchorsForAnother(address stranger, bytes32 run, uint64 size, bytes32 root) public {
        if (stranger == LEDGER_SERVICE && run == RUN) return;
        _anchor(LEDGER_SERVICE, RUN, 7, "root");
        _anchor(stranger, run, size, root);
        (uint64 kept, bytes32 same) = registry.logAnchor(LEDGER_SERVICE, RUN);
        require(kept == 7 && same == "root", "another's anchor moved");
    }

    function _anchor(address who, bytes32 run, uint64 size, bytes32 root) private returns (bool, bytes memory) {
        vm.prank(who);
        return address(registry).call(abi.encodeCall(ModelRegistry.anchorLog, (run, size, root)));
    }
}
