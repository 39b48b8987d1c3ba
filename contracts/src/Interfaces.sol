// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {EpochResult, Statement} from "./Statements.sol";

// What the contracts of one deployment ask of each other, and nothing more.

interface IVerifierSet {
    function currentVersion() external view returns (uint32);
    /// @dev Reverts unless the certificate is valid.
    function verify(uint32 version, bytes32 digest, uint8 certType, bytes calldata cert)
        external
        view
        returns (uint256 weight, uint256 signers);
    function vault() external view returns (IStakeVault);
    function requireStaked(uint64 until) external view;
    function seatOf(uint32 version, address account) external view returns (uint256);
    function entryCount() external view returns (uint256);
    function draw(
        bytes32 seed,
        uint256 seats,
        uint256 count,
        uint64 asked,
        uint32 version,
        uint256 signers,
        address[2] calldata parties
    ) external view returns (address[] memory jury);
}

interface IStakeVault {
    function token() external view returns (IERC20);
    function court() external view returns (address);
    function unbondingDelay() external view returns (uint64);
    function accountOf(address hotKey) external view returns (address);
    function speaksFor(address hotKey) external view returns (address);
    function hotKeyOf(address account) external view returns (address);
    function minStake(uint8 role) external view returns (uint256);
    function stakeOf(address who, uint8 role) external view returns (uint256 active, uint256 unbonding);
    function lotOf(address who, uint8 role, bytes32 commitment)
        external
        view
        returns (uint256 amount, uint64 until, uint64 cases);
    function slash(
        address who,
        uint8 role,
        bytes32 commitment,
        uint256 ppm,
        bytes32 offenceId,
        address buyer,
        address challenger,
        uint64 payableAt
    ) external returns (uint256 amount);
    function payOut(bytes32 offenceId) external;
    function restore(bytes32 offenceId) external;
    function bar(address who, bytes32 offenceId, address reporter) external;
    function hold(address who, uint8 role, bytes32 commitment) external;
    function unhold(address who, uint8 role, bytes32 commitment) external;
    function discharge(address who, uint8 role, bytes32 commitment) external;
    function lockBond(bytes32 caseId, address who, uint128 amount) external;
    function returnBond(bytes32 caseId) external;
    function burnBond(bytes32 caseId) external;
    function shareBond(bytes32 bondId, address winner, address[] calldata jurors) external;
}

interface IRunEscrow {
    function settlement() external view returns (address);
    function buyerOf(bytes32 runId) external view returns (address);
    function setVersionOf(bytes32 runId) external view returns (uint32);
    function closesAtOf(bytes32 runId) external view returns (uint64);
    function reserve(bytes32 runId, uint64 epoch, uint128 total) external;
    function release(bytes32 runId, uint128 total, uint64 openUntil) external;
    function endOf(uint8 role, bytes32 commitment) external view returns (uint64);
    function settle(bytes32 runId, uint64 epoch) external;
    function pay(bytes32 runId, address[] calldata accounts, uint128[] calldata amounts) external;
    function payeeOf(address account) external view returns (address);
    function returnUnclaimed(bytes32 runId, uint128 amount) external;
}

interface IEpochSettlement {
    function resultDigest(EpochResult calldata r) external view returns (bytes32);
    function finalModel(bytes32 digest) external view returns (bytes32 runId, bytes32 modelHash);
}

interface ISlashCourt {
    function vault() external view returns (IStakeVault);
    function evidenceWindow() external view returns (uint64);
    function vetoWindow() external view returns (uint64);
    function executeWindow() external view returns (uint64);
    function margin() external view returns (uint64);
    function payoutDelay() external view returns (uint64);
    function statementDigest(Statement calldata s) external view returns (bytes32);
    function appeals() external view returns (address);
    function suspend(bytes32 caseId, address who) external returns (bytes32 runId, uint64 signers, address opener);
    function resume(bytes32 caseId, bool isReversed) external;
}
