// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IEpochSettlement, IRunEscrow, IVerifierSet} from "./Interfaces.sol";
import {Judge, ModelRecord, Statements} from "./Statements.sol";

/// @title Which model came out of which run; append only, hashes only, no personal data.
/// @notice A record points to a final result of its run that names the same model.
contract ModelRegistry is Judge {
    using Statements for ModelRecord;

    struct Entry {
        bytes32 runId;
        bytes32 modelHash;
        uint64 registeredAt; // chain time, seconds
        address by;
    }

    IRunEscrow public immutable escrow;
    IEpochSettlement public immutable settlement;
    IVerifierSet public immutable verifierSet;

    mapping(bytes32 recordId => Entry) public entries;

    event ModelRegistered(
        bytes32 indexed recordId,
        bytes32 indexed runId,
        bytes32 indexed modelHash,
        bytes32 dataInventoryHash,
        bytes32 configHash,
        bytes32 parent,
        bytes32 lastResult,
        address by
    );

    error RecordExists(bytes32 recordId);
    error UnknownParent(bytes32 parent);
    error NotAFinalResult(bytes32 lastResult);

    constructor(bytes32 deploymentId_, IRunEscrow escrow_, IEpochSettlement settlement_, IVerifierSet verifierSet_)
        Judge("AssayModelRegistry", deploymentId_)
    {
        escrow = escrow_;
        settlement = settlement_;
        verifierSet = verifierSet_;
    }

    /// @return recordId The record's EIP-712 digest.
    function register(ModelRecord calldata r, uint8 certType, bytes calldata cert)
        external
        returns (bytes32 recordId)
    {
        _requireOurs(r.deploymentId);
        recordId = recordDigest(r);
        if (entries[recordId].registeredAt != 0) revert RecordExists(recordId);
        if (r.parent != 0 && entries[r.parent].registeredAt == 0) revert UnknownParent(r.parent);
        (bytes32 runId, bytes32 modelHash) = settlement.finalModel(r.lastResult);
        if (runId == 0 || runId != r.runId || modelHash != r.modelHash) revert NotAFinalResult(r.lastResult);
        verifierSet.verify(escrow.setVersionOf(r.runId), recordId, certType, cert);
        entries[recordId] = Entry(r.runId, r.modelHash, uint64(block.timestamp), msg.sender);
        emit ModelRegistered(
            recordId, r.runId, r.modelHash, r.dataInventoryHash, r.configHash, r.parent, r.lastResult, msg.sender
        );
    }

    function recordDigest(ModelRecord calldata r) public view returns (bytes32) {
        return _hashTypedDataV4(r.structHash());
    }
}
