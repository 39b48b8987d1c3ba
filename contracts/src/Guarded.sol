// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @title One call at a time.
/// @dev What OpenZeppelin's ReentrancyGuardTransient does, written with a transient variable: slither
///      cannot read its storage slots, and then skips the functions that it guards.
abstract contract Guarded {
    bool private transient _entered;

    error ReentrancyGuardReentrantCall();

    modifier nonReentrant() {
        if (_entered) revert ReentrancyGuardReentrantCall();
        _entered = true;
        _;
        _entered = false; // a transaction may come again
    }
}
