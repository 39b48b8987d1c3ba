// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {IEpochSettlement, IRunEscrow, IVerifierSet} from "./Interfaces.sol";
import {Judge, ModelRecord, Statements, Supersession} from "./Statements.sol";

/// @title Records of delivered models, and anchors of the ledger services' logs; append-only, hashes only,
///        no personal data.
/// @notice A record points to a final result of its run that names the same model. An anchor binds
///         only its sender: a reader names the ledger service whose log it checks.
contract ModelRegistry is Judge {
    using Statements for ModelRecord;
    using Statements for Supersession;

    struct Entry {
        bytes32 runId;
        bytes32 modelHash;
        uint64 registeredAt; // chain time, seconds
        address by;
    }

    struct Succession {
        uint64 supersededAt; // chain time, seconds; zero while the record is valid
        bytes32 newRecordId; // zero: withdrawn
        bytes32 reasonHash;
    }

    struct LogAnchor {
        uint64 size; // leaves; zero while nothing is anchored
        bytes32 root;
    }

    IRunEscrow public immutable escrow;
    IEpochSettlement public immutable settlement;
    IVerifierSet public immutable verifierSet;

    mapping(bytes32 recordId => Entry) public entries;
    mapping(bytes32 recordId => Succession) public successions;
    mapping(address ledgerService => mapping(bytes32 runId => LogAnchor)) public logAnchor;

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

    event ModelSuperseded(
        bytes32 indexed recordId, bytes32 indexed newRecordId, bytes32 reasonHash, address by
    );
    event LogAnchored(address indexed ledgerService, bytes32 indexed runId, uint64 size, bytes32 root);

    error RecordExists(bytes32 recordId);
    error UnknownParent(bytes32 parent);
    error NotAFinalResult(bytes32 lastResult);
    error UnknownRecord(bytes32 recordId);
    error NotStanding(bytes32 recordId);
    error LogNotGrown(uint64 arrived, uint64 anchored);

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
        // slither-disable-next-line unused-return
        verifierSet.verify(escrow.setVersionOf(r.runId), recordId, certType, cert);
        entries[recordId] = Entry(r.runId, r.modelHash, uint64(block.timestamp), msg.sender);
        emit ModelRegistered(
            recordId, r.runId, r.modelHash, r.dataInventoryHash, r.configHash, r.parent, r.lastResult, msg.sender
        );
    }

    /// @notice Replaces a record by another, or, with zero, withdraws it. The old record stays readable, and a
    ///         replacement is final.
    /// @dev    The current set signs: the verifiers that signed the record may have withdrawn their stake since.
    ///         The successor must be valid and the record becomes invalid, so successors never form a cycle.
    function supersede(bytes32 recordId, bytes32 newRecordId, bytes32 reasonHash, uint8 certType, bytes calldata cert)
        external
    {
        _requireStanding(recordId);
        if (newRecordId == recordId) revert NotStanding(newRecordId);
        if (newRecordId != 0) _requireStanding(newRecordId);
        bytes32 digest = supersessionDigest(recordId, newRecordId, reasonHash);
        // slither-disable-next-line unused-return
        verifierSet.verify(verifierSet.currentVersion(), digest, certType, cert);
        successions[recordId] = Succession(uint64(block.timestamp), newRecordId, reasonHash);
        emit ModelSuperseded(recordId, newRecordId, reasonHash, msg.sender);
    }

    /// @notice Fixes the root that the caller's log of a run has at a size. Whoever anchored a size once can
    ///         never anchor another root for it: a ledger service that shows two people two logs is found out.
    function anchorLog(bytes32 runId, uint64 size, bytes32 root) external {
        LogAnchor storage last = logAnchor[msg.sender][runId];
        if (size <= last.size) revert LogNotGrown(size, last.size);
        (last.size, last.root) = (size, root);
        emit LogAnchored(msg.sender, runId, size, root);
    }

    function supersessionDigest(bytes32 recordId, bytes32 newRecordId, bytes32 reasonHash)
        public
        view
        returns (bytes32)
    {
        return _hashTypedDataV4(Supersession(deploymentId, recordId, newRecordId, reasonHash).structHash());
    }

    function recordDigest(ModelRecord calldata r) public view returns (bytes32) {
        return _hashTypedDataV4(r.structHash());
    }

    function _requireStanding(bytes32 recordId) private view {
        // Zero is what no record has: the chain's clock is past it.
        // slither-disable-next-line incorrect-equality
        if (entries[recordId].registeredAt == 0) revert UnknownRecord(recordId);
        if (successions[recordId].supersededAt != 0) revert NotStanding(recordId);
    }
}
