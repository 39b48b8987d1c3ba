// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {IStakeVault} from "./Interfaces.sol";
import {Judge, Rotation, Statements} from "./Statements.sol";

/// @title The verifiers, as numbered sets that never change once written.
/// @notice A set hands over to the next by its own quorum; old versions stay readable, because a run
///         is judged by the set it was opened with. Members are accounts; each signs with the hot key that it delegated
///         last, so that a leaked key can be replaced while runs of its set are open. A member that joins by a rotation
///         has locked a lot for its term in that set, and has a hot key whose equivocation costs its stake. The first
///         set is chosen by the deployer; no run is opened while a third of a set lack either.
///
///         Juries are drawn from a list. An entry is the minimum of verifier's stake, free or locked, of one account,
///         enlisted by it. An entry counts for questions asked after it was enlisted, while its stake is there.
contract VerifierSet is Judge {
    using Statements for Rotation;

    uint256 public constant MEMBERS_MAX = 64;
    uint8 public constant CERT_ECDSA = 0;
    uint256 private constant SIGNATURE_BYTES = 65;
    uint8 private constant VERIFIER = 1;
    uint256 private constant JURORS_MIN = 3; // different accounts on a jury
    uint256 private constant DRAWS_PER_SEAT = 16; // bounds a draw among entries that do not count

    struct Entry {
        address account;
        uint64 since; // block
    }

    struct VersionInfo {
        bytes32 setHash;
        uint64 fromEpoch;
        uint32 size;
    }

    IStakeVault public immutable vault;
    uint32 public currentVersion;
    mapping(uint32 version => VersionInfo) public versions;
    mapping(uint32 version => address[]) private _members;
    mapping(uint32 version => mapping(address account => uint256 indexPlusOne)) private _seat;
    Entry[] private _list;
    mapping(address account => uint256 count) public entriesOf;

    event SetRotated(uint32 indexed version, bytes32 setHash, uint64 fromEpoch);
    event Enlisted(address indexed account, uint256 place);

    error BadSetSize(uint256 size);
    error MembersNotAscending(address account);
    error UnknownVersion(uint32 version);
    error UnknownCertType(uint8 certType);
    error BadCertLength(uint256 length);
    error SignersNotAscending(address signer);
    error NotAMember(address signer);
    error QuorumNotReached(uint256 have, uint256 need);
    error EpochGoesBack(uint64 fromEpoch);
    error NotStaked(address account);
    error NoJury(uint256 jurors);

    constructor(bytes32 deploymentId_, IStakeVault vault_, address[] memory firstSet)
        Judge("AssayVerifierSet", deploymentId_)
    {
        vault = vault_;
        _install(firstSet, 0);
    }

    /// @notice Installs the next set. `cert` is a quorum of the present one over Rotation.
    function rotate(address[] calldata newSet, uint64 fromEpoch, uint8 certType, bytes calldata cert) external {
        uint32 version = currentVersion;
        if (fromEpoch < versions[version].fromEpoch) revert EpochGoesBack(fromEpoch);
        verify(version, rotationDigest(version, hashOf(newSet), fromEpoch), certType, cert);
        // At most 64 members, and the vault is one of ours that cannot be replaced: no call here can be made to fail.
        for (uint256 i = 0; i < newSet.length; i++) {
            if (!_isStaked(newSet[i], version + 1, uint64(block.timestamp))) revert NotStaked(newSet[i]);
        }
        _install(newSet, fromEpoch);
    }

    /// @notice Reverts if a third or more of the current set lack a lot for this term until `until`, or their hot key:
    ///         no single member can keep runs from being opened, and every quorum has stake to lose.
    function requireStaked(uint64 until) external view {
        address[] storage set = _members[currentVersion];
        uint256 lacking = 0;
        address last = address(0);
        for (uint256 i = 0; i < set.length; i++) {
            if (_isStaked(set[i], currentVersion, until)) continue;
            lacking++;
            last = set[i];
        }
        if (lacking * 3 >= set.length) revert NotStaked(last);
    }

    // ---- juries

    /// @notice Adds an entry of the caller's to the list for each of `places`: there, where the entry has no stake any
    ///         more, else at the end, so that two callers at once are not in each other's way.
    function enlist(uint256[] calldata places) external {
        uint256 minimum = vault.minStake(VERIFIER);
        Entry memory entry = Entry(msg.sender, uint64(block.number));
        for (uint256 i = 0; i < places.length; i++) {
            uint256 place = places[i];
            if (place < _list.length && !_isBacked(_list[place].account, minimum)) {
                entriesOf[_list[place].account] -= 1;
                _list[place] = entry;
            } else {
                place = _list.length;
                _list.push(entry);
            }
            entriesOf[msg.sender] += 1;
            emit Enlisted(msg.sender, place);
        }
        if (!_isBacked(msg.sender, minimum)) revert NotStaked(msg.sender);
    }

    /// @notice A jury of `seats` entries, each drawn by `seed` from the first `count` of the list. Left out are entries
    ///         of block `asked` or later, entries without stake, the members of `version` in the bitmap
    ///         `signers`, and two accounts more. An account may have several seats.
    /// @dev    Reverts with fewer than three accounts: one or two are no jury.
    function draw(
        bytes32 seed,
        uint256 seats,
        uint256 count,
        uint64 asked,
        uint32 version,
        uint256 signers,
        address[2] calldata parties
    ) external view returns (address[] memory jury) {
        uint256 minimum = vault.minStake(VERIFIER);
        jury = new address[](seats);
        uint256 found = 0;
        uint256 accounts = 0;
        for (uint256 i = 0; count != 0 && found < seats && i < seats * DRAWS_PER_SEAT; i++) {
            Entry memory entry = _list[uint256(keccak256(abi.encode(seed, i))) % count];
            address who = entry.account;
            if (entry.since >= asked || who == parties[0] || who == parties[1]) continue;
            uint256 seat = _seat[version][who];
            if (seat != 0 && signers >> (seat - 1) & 1 != 0) continue;
            if (!_isBacked(who, minimum)) continue;
            bool isNew = true;
            for (uint256 k = 0; k < found; k++) {
                if (jury[k] == who) isNew = false;
            }
            if (isNew) accounts++;
            jury[found++] = who;
        }
        if (found < seats || accounts < JURORS_MIN) revert NoJury(accounts);
    }

    /// @notice Reverts unless `cert` holds a quorum of distinct members' signatures over `digest`.
    /// @dev   Of an account's hot keys only the one delegated last counts, so distinct keys are distinct members.
    /// @param cert 65-byte signatures (r, s, v), low s, in strictly ascending order of signer address.
    function verify(uint32 version, bytes32 digest, uint8 certType, bytes calldata cert)
        public
        view
        returns (uint256 weight, uint256 bitmap)
    {
        if (!exists(version)) revert UnknownVersion(version);
        if (certType != CERT_ECDSA) revert UnknownCertType(certType);
        if (cert.length % SIGNATURE_BYTES != 0 || cert.length > MEMBERS_MAX * SIGNATURE_BYTES) {
            revert BadCertLength(cert.length);
        }
        address last = address(0);
        for (uint256 start = 0; start < cert.length; start += SIGNATURE_BYTES) {
            address signer = ECDSA.recover(digest, bytes(cert[start:start + SIGNATURE_BYTES]));
            if (signer <= last) revert SignersNotAscending(signer);
            last = signer;
            // slither-disable-next-line calls-loop
            uint256 seat = _seat[version][vault.speaksFor(signer)];
            if (seat == 0) revert NotAMember(signer);
            bitmap |= 1 << (seat - 1);
            weight += 1;
        }
        uint256 need = quorum(version);
        if (weight < need) revert QuorumNotReached(weight, need);
    }

    // ---- reads

    function exists(uint32 version) public view returns (bool) {
        return version != 0 && version <= currentVersion;
    }

    /// @notice floor(2n/3) + 1 of n members: any two quorums share an honest one while f < n/3.
    function quorum(uint32 version) public view returns (uint256) {
        return uint256(versions[version].size) * 2 / 3 + 1;
    }

    /// @notice One more than a member's position in a set, which is its bit in a certificate's bitmap; zero for others.
    function seatOf(uint32 version, address account) external view returns (uint256) {
        return _seat[version][account];
    }

    function entryCount() external view returns (uint256) {
        return _list.length;
    }

    /// @notice Where the list has room for an entry: at the first one without stake, else at its end.
    function roomForEntry() external view returns (uint256 place) {
        uint256 minimum = vault.minStake(VERIFIER);
        while (place < _list.length && _isBacked(_list[place].account, minimum)) place++;
    }

    function setHash(uint32 version) external view returns (bytes32) {
        return versions[version].setHash;
    }

    function members(uint32 version) external view returns (address[] memory) {
        return _members[version];
    }

    function hashOf(address[] memory set) public pure returns (bytes32) {
        return keccak256(abi.encode(set));
    }

    function rotationDigest(uint32 fromVersion, bytes32 newHash, uint64 fromEpoch) public view returns (bytes32) {
        return _hashTypedDataV4(Rotation(deploymentId, fromVersion, newHash, fromEpoch).structHash());
    }

    // ---- inside

    function _isStaked(address account, uint32 version, uint64 atLeast) private view returns (bool) {
        // slither-disable-next-line unused-return,calls-loop
        (uint256 amount, uint64 until,) = vault.lotOf(account, VERIFIER, bytes32(uint256(version)));
        if (until < atLeast) return false;
        // slither-disable-next-line calls-loop
        return amount >= vault.minStake(VERIFIER) && vault.hotKeyOf(account) != address(0);
    }

    /// @dev What is leaving, the other value, does not count.
    function _active(address account) private view returns (uint256 active) {
        // slither-disable-next-line unused-return,calls-loop
        (active,) = vault.stakeOf(account, VERIFIER);
    }

    function _isBacked(address account, uint256 minimum) private view returns (bool) {
        return _active(account) >= entriesOf[account] * minimum;
    }

    function _install(address[] memory set, uint64 fromEpoch) private {
        if (set.length == 0 || set.length > MEMBERS_MAX) revert BadSetSize(set.length);
        uint32 version = ++currentVersion;
        bytes32 newHash = hashOf(set);
        versions[version] = VersionInfo(newHash, fromEpoch, uint32(set.length));
        address last = address(0);
        for (uint256 i = 0; i < set.length; i++) {
            address account = set[i];
            if (account <= last) revert MembersNotAscending(account);
            last = account;
            _seat[version][account] = i + 1;
            _members[version].push(account);
        }
        emit SetRotated(version, newHash, fromEpoch);
    }
}
