"""Delivery: each entry in order and at least once, over refusals and restarts, to who may read the run."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from assay.api.hooks import delivery, store
from assay.api.hooks.delivery import TURN_ENTRIES, Delivery
from assay.api.hooks.store import HOOKS_MAX, LEASE_S, OWNER_HOOKS_MAX, RETRY_S, Hook, HookStore
from tests.api.a_books import grow, wait_until
from tests.api.a_server import ApiWorld, is_problem
from tests.api.hooks.a_receiver import URL, Receiver, receiving
from tests.ledger.a_database import edit
from tests.ledger.a_run import wallet

pytestmark = pytest.mark.slow
PARTY, STRANGER = wallet("node-0"), "0x" + "99" * 20


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "POLL_S", 0.02)
    monkeypatch.setattr(delivery, "REST_S", 0)


@pytest.fixture
def world_api(folder: Path) -> ApiWorld:
    return ApiWorld(folder, webhooks=True)


@contextmanager
def sending(world_api: ApiWorld, receiver: Receiver) -> Iterator[None]:
    """A process of the server that sends, until it is cancelled in the middle of whatever it does."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(Delivery(world_api.server, receiver.poster()).run())

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        assert not task.done()
        loop.call_soon_threadsafe(task.cancel)
        thread.join(120)
        assert not thread.is_alive()


def register(world_api: ApiWorld, token: str, **body: Any) -> dict[str, Any]:
    answer = world_api.ask("POST", "/v1/hooks", token, json={"run": "paper", "url": URL, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def shown(world_api: ApiWorld, token: str) -> dict[str, Any]:
    (found,) = world_api.get("/v1/hooks", token).json()
    return dict(found)


def entries(world_api: ApiWorld) -> list[dict[str, Any]]:
    answer = world_api.get("/v1/runs/paper/entries?limit=500", world_api.token("read"))
    found: list[dict[str, Any]] = answer.json()["entries"]
    return found


def test_each_entry_is_posted_in_order_signed_with_the_secret_that_was_shown(
    world_api: ApiWorld, tmp_path: Path
):
    token = world_api.session(PARTY)
    made = register(world_api, token, after=0)
    grow(world_api.folder, 130)
    with receiving(tmp_path) as receiver, sending(world_api, receiver):
        receiver.wait(len(entries(world_api)))
        grow(world_api.folder, 1)
        whole = entries(world_api)
        bodies = receiver.wait(len(whole))
        wait_until(lambda: shown(world_api, token)["position"] == len(whole))

    assert [one["data"] for one in bodies] == whole
    assert {one["run"] for one in bodies} == {"paper"}
    assert [(one["type"], one["timestamp"]) for one in bodies] == [
        (one["kind"], one["recorded"]) for one in whole
    ]
    secret = base64.b64decode(made["secret"].removeprefix("whsec_"))
    for number, (_, headers, body) in enumerate(receiver.got, 1):
        assert headers["webhook-id"] == f"msg_{made['id']}_{number}"
        assert headers["webhook-timestamp"] == str(world_api.clock())
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"


def test_a_webhook_begins_with_what_is_written_after_it_was_registered(world_api: ApiWorld, tmp_path: Path):
    size = len(entries(world_api))
    assert register(world_api, world_api.session(PARTY))["position"] == size
    grow(world_api.folder, 1)
    with receiving(tmp_path) as receiver, sending(world_api, receiver):
        assert [one["data"]["number"] for one in receiver.wait(1)] == [size + 1]


def test_the_secret_is_shown_once_and_stored_nowhere(world_api: ApiWorld):
    token = world_api.session(PARTY)
    first, second = register(world_api, token), register(world_api, token, url=URL + "&2")

    secrets = [base64.b64decode(one["secret"].removeprefix("whsec_")) for one in (first, second)]
    assert len(set(secrets)) == 2 and {len(one) for one in secrets} == {32}
    assert "whsec_" not in world_api.get("/v1/hooks", token).text
    with closing(sqlite3.connect(world_api.folder / "access.db")) as db:
        dump = "\n".join(db.iterdump()).lower()
    for one in secrets:
        assert one.hex() not in dump and base64.b64encode(one).decode().lower() not in dump


def test_a_webhook_that_is_far_behind_rests_between_its_turns(
    world_api: ApiWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(delivery, "REST_S", 10)
    grow(world_api.folder, 60)
    register(world_api, world_api.session(PARTY), after=0)
    with receiving(tmp_path) as receiver, sending(world_api, receiver):
        for turn in (1, 2):
            receiver.wait(turn * TURN_ENTRIES)
            wait_until(lambda: the_hook(world_api).next_s == world_api.clock() + 10)
            world_api.clock.now_s += 9
            threading.Event().wait(0.2)
            assert len(receiver.got) == turn * TURN_ENTRIES
            world_api.clock.now_s += 1


def test_a_refused_entry_is_sent_again_later_and_the_next_one_only_after_it(
    world_api: ApiWorld, tmp_path: Path
):
    token, size = world_api.session(PARTY), len(entries(world_api))
    register(world_api, token)
    grow(world_api.folder, 2)
    with receiving(tmp_path, answers=[500, 302]) as receiver, sending(world_api, receiver):
        receiver.wait(1)
        wait_until(lambda: shown(world_api, token)["attempts"] == 1)
        assert shown(world_api, token)["error"] == "answered 500, 200 to 299 expected"
        world_api.clock.now_s += RETRY_S[0] - 1  # not yet
        threading.Event().wait(0.3)
        assert len(receiver.got) == 1
        world_api.clock.now_s += 1
        wait_until(lambda: shown(world_api, token)["attempts"] == 2)
        world_api.clock.now_s += RETRY_S[1]
        bodies = receiver.wait(4)
        wait_until(lambda: shown(world_api, token)["position"] == size + 2)

    assert [one["data"]["number"] for one in bodies] == [size + 1] * 3 + [size + 2]
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got[:3]}) == 1
    assert (shown(world_api, token)["attempts"], shown(world_api, token)["error"]) == (0, "")


def test_a_webhook_that_refuses_too_often_fails_visibly_and_gets_nothing_more(
    world_api: ApiWorld, tmp_path: Path
):
    token = world_api.session(PARTY)
    register(world_api, token, after=0)
    with receiving(tmp_path, answers=[503] * 100) as receiver, sending(world_api, receiver):
        for attempt, delay_s in enumerate(RETRY_S, 1):
            wait_until(lambda attempt=attempt: the_hook(world_api).attempts == attempt)
            assert not the_hook(world_api).is_failed
            world_api.clock.now_s += delay_s
        wait_until(lambda: the_hook(world_api).is_failed)
        world_api.clock.now_s += 10 * 24 * 3600
        threading.Event().wait(0.3)
        assert len(receiver.got) == len(RETRY_S) + 1

    token = world_api.session(PARTY)  # the first has expired
    assert shown(world_api, token)["error"] == "answered 503, 200 to 299 expected"
    assert is_problem(world_api.ask("POST", "/v1/hooks", token, json={"run": "paper", "url": URL}), 409)
    hook = shown(world_api, token)["id"]
    assert world_api.ask("DELETE", f"/v1/hooks/{hook}", token).status_code == 204
    register(world_api, token, after=3)


def test_a_receiver_that_is_gone_is_given_up_at_once(world_api: ApiWorld, tmp_path: Path):
    token = world_api.session(PARTY)
    register(world_api, token, after=0)
    with receiving(tmp_path, answers=[410]) as receiver, sending(world_api, receiver):
        wait_until(lambda: shown(world_api, token)["is_failed"])
    assert len(receiver.got) == 1


def test_a_restarted_server_goes_on_from_the_position_on_disk(world_api: ApiWorld, tmp_path: Path):
    register(world_api, world_api.session(PARTY), after=0)
    grow(world_api.folder, 120)
    whole = entries(world_api)
    with receiving(tmp_path) as receiver:
        again = world_api
        for count in (1, 20, 60):
            with sending(again, receiver):
                receiver.wait(count)  # and it is cut off while it sends on
            again = ApiWorld(world_api.folder, webhooks=True)
            again.clock.now_s = world_api.clock.now_s = world_api.clock.now_s + LEASE_S
        with sending(again, receiver):
            wait_until(lambda: receiver.got and f"_{len(whole)}" in receiver.got[-1][1]["webhook-id"])
        numbers = [one["data"]["number"] for one in receiver.wait(len(whole))]

    assert [number for at, number in enumerate(numbers) if number not in numbers[:at]] == list(
        range(1, len(whole) + 1)
    )
    assert all(after - before in (0, 1) for before, after in pairwise(numbers))
    assert len(numbers) <= len(whole) + 3  # what was under way at a cut, and nothing else


def test_two_processes_on_one_store_keep_the_order(world_api: ApiWorld, tmp_path: Path):
    register(world_api, world_api.session(PARTY), after=0)
    grow(world_api.folder, 60)
    whole = entries(world_api)
    with (
        receiving(tmp_path) as receiver,
        sending(world_api, receiver),
        sending(ApiWorld(world_api.folder, webhooks=True), receiver),
    ):
        bodies = receiver.wait(len(whole))
        threading.Event().wait(0.2)

    assert [one["data"]["number"] for one in bodies] == [one["number"] for one in whole]
    assert len(receiver.got) == len(whole)


def test_a_slow_receiver_does_not_hold_up_another(world_api: ApiWorld, tmp_path: Path):
    grow(world_api.folder, 40)
    register(world_api, world_api.session(PARTY), after=0, url=URL + "&slow")
    register(world_api, world_api.session(PARTY), after=0)
    with receiving(tmp_path) as receiver:
        poster, released = receiver.poster(), threading.Event()

        class Slow:
            async def post(self, url: str, headers: dict[str, str], body: bytes) -> None:
                while url.endswith("slow") and not released.is_set():
                    await asyncio.sleep(0.01)
                await poster.post(url, headers, body)

        receiver.poster = Slow  # type: ignore[method-assign, assignment]
        with sending(world_api, receiver):
            receiver.wait(len(entries(world_api)))
            released.set()
    assert {path for path, *_ in receiver.got[: len(entries(world_api))]} == {"/assay?from=api"}


# ---- who may register one, and how many


def test_only_a_token_with_the_scope_or_a_party_of_the_run_registers_one(world_api: ApiWorld, folder: Path):
    asked = {"run": "paper", "url": URL}
    public = ApiWorld(folder, public_read=True, webhooks=True)
    for world in (world_api, public):
        assert is_problem(world.ask("POST", "/v1/hooks", json=asked), 401)
        assert is_problem(world.ask("POST", "/v1/hooks", world.token("read"), json=asked), 403, "'hook'")
        stranger = world.session(STRANGER)  # whom anybody can make
        assert is_problem(world.ask("POST", "/v1/hooks", stranger, json=asked), 403, "a run's parties")
        other = world.ask("POST", "/v1/hooks", world.token("hook"), json={**asked, "run": "other"})
        assert is_problem(other, 404)
    off = ApiWorld(folder)
    for method, path in (("POST", "/v1/hooks"), ("GET", "/v1/hooks"), ("DELETE", "/v1/hooks/" + "0" * 32)):
        assert is_problem(off.ask(method, path, off.session(PARTY), json=asked), 503, "sends no webhooks")

    register(world_api, world_api.session(PARTY))
    register(world_api, world_api.token("hook"))
    register(ApiWorld(folder, readers=(STRANGER,), webhooks=True), world_api.session(STRANGER))


def test_an_address_that_is_none_is_told_what_is_expected(world_api: ApiWorld):
    body = {"run": "paper", "url": "https://127.0.0.1/"}
    answer = world_api.ask("POST", "/v1/hooks", world_api.session(PARTY), json=body)
    assert is_problem(answer, 422, "body.url: Value error, expected https://NAME/PATH")


def test_nobody_sees_or_removes_the_webhook_of_another(world_api: ApiWorld):
    mine, other = world_api.session(PARTY), world_api.session(wallet("node-1"))
    hook = register(world_api, mine)["id"]
    bearer = world_api.token("hook")

    for token in (other, bearer):
        assert world_api.get("/v1/hooks", token).json() == []
        assert is_problem(world_api.ask("DELETE", f"/v1/hooks/{hook}", token), 404)
    same_account = world_api.token("hook", account=PARTY)
    assert shown(world_api, same_account)["id"] == hook
    assert world_api.ask("DELETE", f"/v1/hooks/{hook}", same_account).status_code == 204
    assert world_api.get("/v1/hooks", mine).json() == []


def test_webhooks_are_bounded_by_owner_and_in_all(world_api: ApiWorld):
    token = world_api.session(PARTY)
    for at in range(OWNER_HOOKS_MAX):
        register(world_api, token, url=f"{URL}&{at}")
    body = {"run": "paper", "url": URL}
    answer = world_api.ask("POST", "/v1/hooks", world_api.token("hook", account=PARTY), json=body)
    assert is_problem(answer, 429, f"{OWNER_HOOKS_MAX} webhooks of this caller")

    with world_api.access.writing() as db:
        db.executemany(
            "INSERT INTO hook (id, owner, run, url, position, next_s, created_s) "
            "VALUES (?, 'x', 'r', ?, 0, 0, 0)",
            [(str(at), str(at)) for at in range(HOOKS_MAX - OWNER_HOOKS_MAX)],
        )
    answer = world_api.ask("POST", "/v1/hooks", world_api.token("hook"), json=body)
    assert is_problem(answer, 429, f"{HOOKS_MAX} webhooks on this server")
    with world_api.access.writing() as db:  # one that failed long ago makes room
        db.execute(
            "UPDATE hook SET is_failed = 1, next_s = ? WHERE id = '0'",
            (world_api.clock() - store.KEPT_FAILED_S,),
        )
    register(world_api, world_api.token("hook"))


def test_a_number_that_the_log_does_not_have_is_a_problem(world_api: ApiWorld):
    size = len(entries(world_api))
    for after in (size + 1, 2**63 - 1):
        body = {"run": "paper", "url": URL, "after": after}
        answer = world_api.ask("POST", "/v1/hooks", world_api.session(PARTY), json=body)
        assert is_problem(answer, 409, f"the log has {size} entries")


@pytest.mark.parametrize("end", ["revoked", "expired", "no reader"])
def test_who_may_not_read_any_more_is_sent_nothing_more(folder: Path, tmp_path: Path, end: str):
    world_api = ApiWorld(folder, readers=(STRANGER,), webhooks=True)
    token = world_api.session(STRANGER) if end == "no reader" else world_api.token("hook", "read")
    register(world_api, token)
    with receiving(tmp_path) as receiver:
        with sending(world_api, receiver):
            grow(folder, 1)
            receiver.wait(1)
            wait_until(
                lambda: not the_hook(world_api).error and the_hook(world_api).next_s <= world_api.clock()
            )
        if end == "revoked":
            world_api.access.revoke(1, world_api.clock())
        elif end == "expired":
            world_api.clock.now_s += 24 * 3600
        else:
            world_api = ApiWorld(folder, webhooks=True)
        grow(folder, 1)
        with sending(world_api, receiver):
            wait_until(lambda: the_hook(world_api).is_failed)
    assert len(receiver.got) == 1
    assert the_hook(world_api).error == "its owner may not read the run any more"


def the_hook(world_api: ApiWorld) -> Hook:
    with world_api.access.reading() as db:
        (owner,) = db.execute("SELECT owner FROM hook").fetchone()
    return HookStore(world_api.access).of(owner)[0]


def test_a_removed_webhook_gets_nothing_more_than_what_is_under_way(world_api: ApiWorld, tmp_path: Path):
    token = world_api.session(PARTY)
    hook = register(world_api, token, after=0)["id"]
    grow(world_api.folder, 60)
    with receiving(tmp_path) as receiver, sending(world_api, receiver):
        receiver.wait(3)
        assert world_api.ask("DELETE", f"/v1/hooks/{hook}", token).status_code == 204
        count = len(receiver.got)
        threading.Event().wait(0.3)
        assert len(receiver.got) <= count + 1


def test_an_altered_entry_is_not_sent(world_api: ApiWorld, tmp_path: Path):
    register(world_api, world_api.session(PARTY), after=0)
    books = world_api.folder / "paper" / "participants" / "ledger" / "ledger.db"
    edit(books, "UPDATE journal_entry SET block_number = block_number + 1 WHERE id = 2")
    with receiving(tmp_path) as receiver, sending(world_api, receiver):
        wait_until(lambda: the_hook(world_api).next_s == world_api.clock() + delivery.WAIT_S)
    assert receiver.got == [] and not the_hook(world_api).is_failed
