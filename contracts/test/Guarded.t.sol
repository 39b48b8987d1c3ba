// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Guarded} from "../src/Guarded.sol";
import {Vm} from "./World.sol";

contract Door is Guarded {
    uint256 public passed;

    function enter(bool again) external nonReentrant {
        passed++;
        if (again) this.enter(false);
    }

    function enterByAnother(Door other) external nonReentrant {
        other.enter(false);
    }
}

contract GuardedTest {
    Vm private constant vm = Vm(0x7109709ECfa91a80626fF3989D68f67F5b1DD12D);

    function test_nobodyEntersTwiceAtOnce() public {
        Door door = new Door();
        vm.expectRevert(Guarded.ReentrancyGuardReentrantCall.selector);
        door.enter(true);
        require(door.passed() == 0, "the inner call counted");
    }

    function test_oneTransactionMayComeTwiceAndEachDoorIsItsOwn() public {
        (Door one, Door two) = (new Door(), new Door());
        one.enter(false);
        one.enter(false);
        one.enterByAnother(two);
        require(one.passed() == 2 && two.passed() == 1, "a door stayed shut");
    }
}
