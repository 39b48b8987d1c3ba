// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

/// @notice Drawn seats, one account for each, and how they voted; an account may have several.
struct Jury {
    address[] seats;
    uint32 right; // bitmap of seats
    uint32 wrong; // bitmap of seats
}

/// @title Votes of a drawn jury: more than half of the seats decide. `VerifierSet.draw` draws it.
library Juries {
    uint8 internal constant SEATS_MIN = 3;
    uint8 internal constant SEATS_MAX = 31;

    error JuryIsDrawn();
    error TooEarlyToDraw(uint64 fromBlock);
    error NotAJuror(address who);
    error AlreadyVoted(address who);

    /// @notice Reverts unless a jury that was asked for in block `asked` can be drawn now.
    function requireDue(Jury storage jury, uint64 asked, uint64 drawDelay) internal view {
        if (jury.seats.length != 0) revert JuryIsDrawn();
        if (block.number < asked + drawDelay) revert TooEarlyToDraw(asked + drawDelay);
    }

    /// @notice Counts a juror's answer with all its seats.
    /// @return side The seats that have given this answer. isDecided Whether they are more than half.
    function cast(Jury storage jury, address who, bool isRight) internal returns (uint32 side, bool isDecided) {
        uint256 seats = jury.seats.length;
        uint32 mine = 0;
        for (uint256 k = 0; k < seats; k++) {
            if (jury.seats[k] == who) mine |= uint32(1 << k);
        }
        if (mine == 0) revert NotAJuror(who);
        if ((jury.right | jury.wrong) & mine != 0) revert AlreadyVoted(who);
        side = (isRight ? jury.right : jury.wrong) | mine;
        if (isRight) jury.right = side;
        else jury.wrong = side;
        isDecided = 2 * count(side) > seats;
    }

    /// @notice How many seats a bitmap holds.
    function count(uint32 bits) internal pure returns (uint256 found) {
        for (; bits != 0; bits &= bits - 1) found++;
    }

    /// @notice The accounts of a bitmap of seats.
    function accountsOf(Jury storage jury, uint32 bits) internal view returns (address[] memory accounts) {
        accounts = new address[](count(bits));
        uint256 found = 0;
        for (uint256 k = 0; bits >> k != 0; k++) {
            if (bits >> k & 1 != 0) accounts[found++] = jury.seats[k];
        }
    }
}
