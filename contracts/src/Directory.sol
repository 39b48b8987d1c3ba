// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IRunEscrow, IStakeVault} from "./Interfaces.sol";

/// @title Where participants announce their addresses and buyers their runs: bytes in the log, their block in storage.
/// @notice Holds no money and judges nothing. What is announced proves itself by its signatures, or is worthless.
contract Directory {
    /// @notice The largest record: a name of 253 characters, keys and signatures.
    uint256 public constant RECORD_BYTES_MAX = 1_024;
    /// @notice The largest run file: the spec, and the records of 256 participants.
    uint256 public constant RUN_BYTES_MAX = 98_304;
    uint8 private constant OPERATOR = 0;
    uint8 private constant VERIFIER = 1;

    bytes32 public immutable deploymentId;
    IRunEscrow public immutable escrow;
    IStakeVault public immutable vault;

    /// @notice In which block the last run file of a run is; zero if there is none.
    mapping(bytes32 runId => uint256 number) public runBlock;
    mapping(address account => mapping(bytes32 peer => uint256 number)) private _recordBlock;
    /// @notice In which block an account on the list announced last; zero if it is not on the list.
    mapping(address account => uint256 number) public stakerBlock;
    bytes32[] private _runs;
    address[] private _stakers;

    event RecordAnnounced(address indexed account, bytes32 indexed peer, bytes record);
    event RunAnnounced(bytes32 indexed runId, bytes runFile);

    error OnlyBuyer();
    error BadLength(uint256 length, uint256 max);

    constructor(bytes32 deploymentId_, IRunEscrow escrow_, IStakeVault vault_) {
        deploymentId = deploymentId_;
        escrow = escrow_;
        vault = vault_;
    }

    /// @notice Says where the caller's `peer` is. A caller with stake is put on the list of stakers, once.
    function announceRecord(bytes32 peer, bytes calldata record) external {
        _requireLength(record, RECORD_BYTES_MAX);
        _recordBlock[msg.sender][peer] = block.number;
        // Zero is what no block has in which a transaction is.
        // slither-disable-next-line incorrect-equality
        bool isNew = stakerBlock[msg.sender] == 0;
        if (!isNew || _isStaked(msg.sender)) {
            stakerBlock[msg.sender] = block.number;
            if (isNew) _stakers.push(msg.sender);
        }
        emit RecordAnnounced(msg.sender, peer, record);
    }

    /// @notice Publishes the run file of a run that the caller opened; the run is put on the list of runs, once.
    function announceRun(bytes32 runId, bytes calldata runFile) external {
        if (escrow.buyerOf(runId) != msg.sender) revert OnlyBuyer();
        _requireLength(runFile, RUN_BYTES_MAX);
        // slither-disable-next-line incorrect-equality
        if (runBlock[runId] == 0) _runs.push(runId);
        runBlock[runId] = block.number;
        emit RunAnnounced(runId, runFile);
    }

    /// @notice For each account and its peer, in which block its last record is; zero if there is none.
    function recordBlocks(address[] calldata accounts, bytes32[] calldata peers)
        external
        view
        returns (uint256[] memory numbers)
    {
        numbers = new uint256[](accounts.length);
        for (uint256 i = 0; i < accounts.length; i++) {
            numbers[i] = _recordBlock[accounts[i]][peers[i]];
        }
    }

    function runCount() external view returns (uint256) {
        return _runs.length;
    }

    /// @notice At most `count` runs from `first` on, in the order of their first announcements.
    function runs(uint256 first, uint256 count) external view returns (bytes32[] memory found) {
        uint256 last = _end(first, count, _runs.length);
        found = new bytes32[](last - first);
        for (uint256 i = first; i < last; i++) {
            found[i - first] = _runs[i];
        }
    }

    function stakerCount() external view returns (uint256) {
        return _stakers.length;
    }

    /// @notice At most `count` accounts from `first` on that had stake when they announced, in the order of that.
    function stakers(uint256 first, uint256 count) external view returns (address[] memory found) {
        uint256 last = _end(first, count, _stakers.length);
        found = new address[](last - first);
        for (uint256 i = first; i < last; i++) {
            found[i - first] = _stakers[i];
        }
    }

    function _isStaked(address who) private view returns (bool) {
        // What is leaving, the second value, does not count.
        // slither-disable-next-line unused-return
        (uint256 asOperator,) = vault.stakeOf(who, OPERATOR);
        // slither-disable-next-line unused-return
        (uint256 asVerifier,) = vault.stakeOf(who, VERIFIER);
        return asOperator + asVerifier != 0;
    }

    function _requireLength(bytes calldata body, uint256 max) private pure {
        if (body.length == 0 || body.length > max) revert BadLength(body.length, max);
    }

    /// @dev `first` itself where it is beyond the end: an empty page.
    function _end(uint256 first, uint256 count, uint256 length) private pure returns (uint256) {
        if (first >= length) return first;
        return count < length - first ? first + count : length;
    }
}
