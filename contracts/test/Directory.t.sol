// SPDX-License-Identifier: MIT
pragma solidity 0.8.37;

import {Directory} from "../src/Directory.sol";
import {IRunEscrow, IStakeVault} from "../src/Interfaces.sol";
import {World} from "./World.sol";

/// @notice Everybody announces for itself alone, only a buyer its run, and the lists hold each entry once.
contract DirectoryTest is World {
    Directory private directory;
    address private constant BUYER = address(0xB1);
    address private constant OPERATOR_ = address(0xA1);
    bytes32 private constant SPEC = keccak256("spec");

    function setUp() public {
        deploy();
        directory = new Directory(ID, IRunEscrow(address(escrow)), IStakeVault(address(vault)));
        fund(BUYER, address(escrow), 1_000);
        fund(OPERATOR_, address(vault), 10);
    }

    function testFuzz_nobodyMovesAnothersRecord(address stranger, bytes32 peer, bytes32 other, uint8 length) public {
        bool isOwn = stranger == OPERATOR_ && other == peer;
        require(_announce(OPERATOR_, peer, new bytes(300)), "a record was refused");
        uint256 before = _recordBlock(OPERATOR_, peer);
        vm.roll(vm.getBlockNumber() + 1);
        bool taken = _announce(stranger, other, new bytes(length));
        require(taken == (length != 0), "an empty record, or none of another length, is refused");
        bool isMoved = _recordBlock(OPERATOR_, peer) != before;
        require(isMoved == (isOwn && taken), "another's record moved");
        require(!taken || _recordBlock(stranger, other) == vm.getBlockNumber(), "not found where it is");
    }

    function testFuzz_onlyBytesOfTheRightLengthAreTaken(uint256 length, bool isRun) public {
        bytes32 run = _openRun(BUYER, SPEC);
        uint256 max = isRun ? directory.RUN_BYTES_MAX() : directory.RECORD_BYTES_MAX();
        length = length % 4 == 0 ? max + length % 3 : length % (max + 2);
        bool taken = isRun ? _announceRun(BUYER, run, length) : _announce(BUYER, SPEC, new bytes(length));
        require(taken == (length != 0 && length <= max), "another bound");
    }

    function testFuzz_onlyTheBuyerOfAnOpenRunAnnouncesIt(address stranger, bytes32 spec) public {
        bytes32 unopened = escrow.runIdOf(BUYER, spec);
        if (spec != SPEC) require(!_announceRun(BUYER, unopened, 10), "a run that is not open");
        bytes32 run = _openRun(BUYER, SPEC);
        if (stranger != BUYER) require(!_announceRun(stranger, run, 10), "another's run");
        require(directory.runCount() == 0 && directory.runBlock(run) == 0, "listed");
        require(_announceRun(BUYER, run, 10), "the buyer was refused");
        require(directory.runBlock(run) == vm.getBlockNumber(), "not found where it is");
    }

    function testFuzz_aListHoldsEachEntryOnceAndPagesReadAllOfIt(uint8 count, uint8 again, uint256 first, uint256 size)
        public
    {
        uint256 total = between(count, 1, 6);
        bytes32[] memory ids = new bytes32[](total);
        for (uint256 i = 0; i < total; i++) {
            ids[i] = _openRun(BUYER, bytes32(i));
            require(_announceRun(BUYER, ids[i], 10), "refused");
        }
        require(_announceRun(BUYER, ids[again % total], 11), "refused");
        require(directory.runCount() == total, "twice");
        bytes32[] memory page = directory.runs(first, size);
        uint256 left = first >= total ? 0 : total - first;
        require(page.length == (size < left ? size : left), "another length");
        for (uint256 i = 0; i < page.length; i++) {
            require(page[i] == ids[first + i], "another run");
        }
    }

    function testFuzz_onlyWhoHasStakeIsOnTheListOfStakers(bool isStaked, bool asVerifier, bool later) public {
        uint8 role = asVerifier ? 1 : 0;
        uint256 amount = asVerifier ? MIN_VERIFIER_STAKE : 10;
        fund(OPERATOR_, address(vault), amount);
        if (isStaked) _stake(role, amount);
        require(_announce(OPERATOR_, "one", new bytes(9)), "refused");
        require(directory.stakerCount() == (isStaked ? 1 : 0), "listed without stake, or not with it");
        require((directory.stakerBlock(OPERATOR_) != 0) == isStaked, "a block without a place on the list");
        if (later && !isStaked) _stake(role, amount);
        vm.roll(vm.getBlockNumber() + 1);
        require(_announce(OPERATOR_, "two", new bytes(9)), "refused");
        bool isListed = isStaked || later;
        require(directory.stakerCount() == (isListed ? 1 : 0), "twice, or never");
        require(directory.stakerBlock(OPERATOR_) == (isListed ? vm.getBlockNumber() : 0), "not its last block");
        if (isListed) require(directory.stakers(0, 9)[0] == OPERATOR_, "another account");
        require(directory.stakers(isListed ? 1 : 0, 9).length == 0, "beyond the end");
    }

    function test_leavingStakeDoesNotTakeAPlaceOnTheListAgain() public {
        _stake(0, 10);
        require(_announce(OPERATOR_, "one", new bytes(9)), "refused");
        vm.prank(OPERATOR_);
        vault.requestUnstake(0, 10);
        vm.roll(vm.getBlockNumber() + 1);
        require(_announce(OPERATOR_, "one", new bytes(9)), "refused");
        require(directory.stakerCount() == 1, "twice");
        require(directory.stakerBlock(OPERATOR_) == vm.getBlockNumber(), "its last record is not found");
    }

    function _stake(uint8 role, uint256 amount) private {
        vm.prank(OPERATOR_);
        vault.stake(role, amount);
    }

    function _openRun(address buyer, bytes32 spec) private returns (bytes32) {
        vm.prank(buyer);
        return escrow.openRun(spec, 1, 1, 1, uint64(_now() + 30 * DAY), 1, 1, new address[](0));
    }

    function _recordBlock(address account, bytes32 peer) private view returns (uint256) {
        address[] memory accounts = new address[](2);
        bytes32[] memory peers = new bytes32[](2);
        (accounts[1], peers[1]) = (account, peer);
        return directory.recordBlocks(accounts, peers)[1];
    }

    function _announce(address who, bytes32 peer, bytes memory record) private returns (bool done) {
        vm.prank(who);
        (done,) = address(directory).call(abi.encodeCall(Directory.announceRecord, (peer, record)));
    }

    function _announceRun(address who, bytes32 run, uint256 length) private returns (bool done) {
        vm.prank(who);
        (done,) = address(directory).call(abi.encodeCall(Directory.announceRun, (run, new bytes(length))));
    }
}
