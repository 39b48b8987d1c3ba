"""The wallet page in a real browser, at a real server on a real chain: it sends what was asked for, shown and
clicked, and nothing else.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from assay.api.actions import settlement
from assay.api.actions.planning import ACTIONS, Planned
from assay.api.config import ServerFile
from assay.api.gateway import Gateway
from assay.api.http.guard import HEADERS
from assay.api.moves import Call
from assay.api.routes import moves as move_routes
from assay.api.routes import signin as signin_routes
from assay.api.routes.wallet import FILES, PAGE, STATIC
from assay.api.schemas import PayoutAnswer, SettlementAnswer
from assay.api.signin import SignIn
from assay.bundle import books
from assay.chain.addresses import CONTRACTS
from assay.chain.signing.unsigned import Transaction
from assay.chain.statements import OPERATOR, VERIFIER
from assay.chain.text.units import parse_money
from assay.network.http import PAGE_POLICY
from assay.protocol.errors import ConfigError
from tests.api.a_books import wait_until
from tests.api.a_server import ApiWorld, is_problem, listening
from tests.api.a_wallet import SCRIPTS, Wallet
from tests.contracts.chain_world import Person, World
from tests.explorer.a_browser import CHROMIUM, Browser, a_browser
from tests.explorer.pictures import compare
from tests.explorer.test_accessible import AXE, NARROW, WIDE, faults
from tests.test_packaging import configuration

pytestmark = pytest.mark.slow
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: sudo apt-get install chromium")
HOSTILE = "<img src=x onerror=alert(1)>\u202e'\"</script>{{7*7}}"
STAKE = 5_000_000_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with a_browser(tmp_path_factory.mktemp("browser")) as found:
        found.ask("Runtime.addBinding", name="askTest")
        yield found


@dataclass
class Site:
    """The page's server, and who uses it."""

    url: str
    api: ApiWorld
    world: World
    browser: Browser

    def wallet(
        self, person: Person | None = None, query: str = "", kind: str = "announced", **more: Any
    ) -> Wallet:
        """A person's wallet in the page, which is opened."""
        added = self.browser.ask("Page.addScriptToEvaluateOnNewDocument", source=SCRIPTS[kind])
        self.browser.called.clear()
        self.browser.open(f"{self.url}/wallet{query}")
        self.browser.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=added["identifier"])
        found = Wallet(self.browser, self.world, person or self.world.operators[0], **more)
        is_there = "document.getElementById('fields').children.length > 0"
        found.until(f"{is_there} || document.body.textContent.includes('Failed to fetch')")
        if self.browser.was_cut():
            return self.wallet(person, query, kind, **more)
        found.until(is_there)
        return found

    def sessions(self) -> int:
        with closing(sqlite3.connect(self.api.folder / "access.db")) as db:
            return int(db.execute("SELECT count(*) FROM session").fetchone()[0])

    def requests(self, path: str) -> int:
        """How often the page has asked for this."""
        return self.browser.addresses.count(self.url + path)


@pytest.fixture
def site(folder: Path, world: World, browser: Browser) -> Iterator[Site]:
    """A server, and a browser whose console complains about nothing."""
    api = ApiWorld(folder, gateway=Gateway(world.rpc_url, world.deployment))
    api.server.now_s = lambda: int(time.time())
    browser.complaints.clear()
    browser.addresses.clear()
    with listening(api.app) as url:
        api.server.config = api.server.config.model_copy(update={"origin": url})
        yield Site(url, api, world, browser)
        browser.open("about:blank")
    assert browser.complaints == []
    assert all(address.startswith((url, "about:")) for address in browser.addresses)


# ---- journeys


@in_browser
def test_stake_is_added_from_a_browsers_wallet(site: Site, world: World):
    wallet = site.wallet()
    wallet.sign_in()
    told = wallet.prepare(action="stake.add", role="operator", amount="5000")
    shown = wallet.text("review")

    assert (told, wallet.sent) == ("Prepared. Nothing is sent yet.", [])
    assert "stake 5,000.000000 aUSD as operator" in shown
    assert f"AssayToken at {world.deployment.token}" in shown and "approve(address,uint256)" in shown
    assert f"StakeVault at {world.deployment.stake_vault}" in shown and "5,000.000000 aUSD" in shown
    assert f"{world.deployment.stake_vault.lower()} (StakeVault)" in shown
    assert re.search(r"at most 0\.\d+ of the chain's coin", shown)

    wallet.press("#send")
    wallet.until("document.getElementById('told').textContent.startsWith('Done')")
    assert world.bank.stake_of(wallet.person.account, OPERATOR).active == STAKE
    assert wallet.text("sent").count("mined in block") == 2
    assert [one["to"] for one in wallet.sent] == [world.deployment.token, world.deployment.stake_vault]
    assert all(one["data"] in shown for one in wallet.sent)
    assert {one["value"] for one in wallet.sent} == {"0x0"} and "nonce" not in wallet.sent[0]
    assert not site.browser.run("document.getElementById('review').checkVisibility()")
    stored = site.browser.run("[localStorage.length, sessionStorage.length, document.cookie.length]")
    assert stored == [0, 0, 0]


@in_browser
def test_a_link_to_a_row_is_claimed(site: Site, world: World, monkeypatch: pytest.MonkeyPatch):
    tree, person = world.settle(), world.operators[1]
    rows = [
        PayoutAnswer(
            index=at, role="operator", peer=bytes(32), account=row.account, amount=row.amount,
            proof=[f"0x{one.hex()}" for one in tree.proof(at)],
        )
        for at, row in enumerate(tree.payouts)
    ]  # fmt: skip
    table = SettlementAnswer(
        epoch=0, table_hash=bytes(32), root=tree.root, tokens_paid=0, total=tree.total, rows=rows
    )
    monkeypatch.setattr(books, "run_id_of", lambda _: world.run_id)
    monkeypatch.setattr(settlement, "payouts", lambda *_: table)
    before = world.bank.token_balance(person.account)
    wallet = site.wallet(person, "?action=claim&run=paper&epoch=0&index=1")

    assert wallet.text("linked").startswith("A link filled this in.")
    assert site.browser.called == [] and wallet.asked == []  # a link begins nothing
    wallet.sign_in()
    assert wallet.prepare() == "Prepared. Nothing is sent yet."
    shown = wallet.text("transactions")
    assert f"0x{world.run_id.hex()}" in shown and "0.000202 aUSD" in shown
    assert f"{person.account.lower()} (your account)" in shown and person.account in wallet.text("account")
    wallet.press("#send")
    wallet.until("document.getElementById('told').textContent === 'Done: it is mined.'")
    assert world.bank.token_balance(person.account) == before + 202


@in_browser
def test_a_call_that_reverts_is_said_to_and_what_follows_is_not_sent(site: Site, world: World):
    wallet = site.wallet()
    wallet.sign_in()
    wallet.prepare(action="stake.add", role="operator", amount="5000")
    world.raw(wallet.person, "AssayToken", "transfer", world.bystander.account, 9_000_000_000)
    wallet.press("#send")
    wallet.until("document.getElementById('told').textContent.startsWith('The contract refused it')")

    first, second = wallet.text("sent").split("\n")
    assert "mined in block" in first and "reverted in block" in second
    assert world.bank.stake_of(wallet.person.account, OPERATOR).active == 0


# ---- people and wallets that do otherwise


@in_browser
def test_what_a_person_rejects_is_neither_signed_nor_sent(site: Site, world: World):
    wallet = site.wallet(rejects=frozenset({"personal_sign"}))
    wallet.press("#wallets button")
    wallet.press("#signin")
    wallet.until("document.getElementById('told').textContent === 'You rejected it in the wallet.'")
    assert "not signed in" in wallet.text("account")
    assert site.browser.run("document.getElementById('prepare').disabled")

    wallet.rejects = frozenset({"eth_sendTransaction"})
    wallet.press("#signin")
    wallet.until("document.getElementById('told').textContent === 'Signed in.'")
    wallet.prepare(action="stake.add", role="operator", amount="5000")
    wallet.press("#send")
    wallet.until("document.getElementById('told').textContent === 'You rejected it in the wallet.'")
    assert "rejected in the wallet, not sent" in wallet.text("sent")
    assert wallet.asked.count("eth_sendTransaction") == 1  # the second is not asked for
    assert site.api.gateway.allowance(wallet.person.account, "StakeVault") == 0


@in_browser
def test_another_chain_is_asked_for_and_without_it_nothing_begins(site: Site):
    wallet = site.wallet(chain_id=1, can_switch=False)
    wallet.press("#wallets button")
    wallet.until("document.getElementById('told').textContent.startsWith('The wallet is on chain 1,')")
    assert "Choose chain 31337" in wallet.told() and wallet.text("account") == "Not connected."

    wallet.can_switch = True
    wallet.press("#wallets button")
    wallet.until("document.getElementById('told').textContent.startsWith('The wallet is connected')")
    assert "on chain 31337" in wallet.text("account")


CHANGES = {
    "another account, told": ("accountsChanged", "buyer"),
    "no account, told": ("accountsChanged", None),
    "another chain, told": ("chainChanged", 1),
    "another account, not told": (None, "buyer"),
    "another chain, not told": (None, 1),
}


@in_browser
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_preparing_and_sending_forgets_both(site: Site, world: World, change: str):
    event, to = CHANGES[change]
    wallet = site.wallet()
    wallet.sign_in()
    wallet.prepare(action="stake.add", role="operator", amount="5000")
    match event, to:
        case "accountsChanged", _:
            wallet.tell(event, [] if to is None else [world.buyer.account])
        case "chainChanged", _:
            wallet.tell(event, hex(to))
        case None, int():
            wallet.chain_id = to
            wallet.press("#send")
        case None, _:
            wallet.person = world.buyer
            wallet.press("#send")
    wallet.until("document.getElementById('account').textContent === 'Not connected.'")

    assert "othing more is sent: connect again." in wallet.told()
    assert not site.browser.run("document.getElementById('review').checkVisibility()")
    assert site.browser.run("document.getElementById('prepare').disabled")
    site.browser.run("document.getElementById('send').click()")  # hidden, and without anything to send
    wallet.serve()
    assert wallet.sent == []
    wait_until(lambda: site.sessions() == 0)  # the page signed out


@in_browser
@pytest.mark.parametrize("is_approved", [False, True])
def test_a_change_while_one_is_on_its_way_stops_what_follows(site: Site, world: World, is_approved: bool):
    wallet = site.wallet(holds=frozenset({"eth_getTransactionReceipt"}))
    if is_approved:  # the one on its way is then the last
        world.raw(wallet.person, "AssayToken", "approve", world.deployment.stake_vault, STAKE)
    wallet.sign_in()
    wallet.prepare(action="stake.add", role="operator", amount="5000")
    wallet.press("#send")
    wallet.until("document.getElementById('sent').textContent.includes('not mined yet')")
    wallet.tell("accountsChanged", [world.buyer.account])
    wallet.holds = frozenset()
    wallet.until("document.getElementById('sent').textContent.includes('mined in block')")

    assert len(wallet.sent) == 1 and wallet.asked.count("eth_sendTransaction") == 1
    assert "acts for another account now" in wallet.told()
    assert world.bank.stake_of(wallet.person.account, OPERATOR).active == (STAKE if is_approved else 0)


@in_browser
def test_a_wallet_that_never_answers_is_left_by_disconnecting(site: Site):
    wallet = site.wallet(holds=frozenset({"personal_sign"}))
    wallet.press("#wallets button")
    wallet.press("#signin")
    wallet.until("document.getElementById('told').textContent.startsWith('Asking the wallet')")
    wallet.press("#forget")
    assert wallet.told() == "Disconnected."
    wallet.holds = frozenset()
    wallet.sign_in()  # the late answer to the first question signs nobody in
    assert wallet.asked.count("personal_sign") == 2


@in_browser
def test_without_a_wallet_the_page_says_so(site: Site):
    site.wallet(kind="none")
    assert site.browser.run("document.getElementById('wallets').innerText").startswith("No wallet was found")
    assert site.browser.run("document.querySelectorAll('#wallets button').length") == 0
    # Addresses are new for each deployment, and where a line of one breaks follows from its digits.
    shown = "document.querySelectorAll('#contracts dd')"
    site.browser.run(f"for (const one of {shown}) one.textContent = '0x' + '0'.repeat(40)")
    compare(site.browser, "wallet")


@in_browser
@pytest.mark.parametrize("kind", ["announced", "window.ethereum"])
def test_a_wallet_is_found_and_its_name_is_text(site: Site, kind: str):
    wallet = site.wallet(kind=kind)
    named = {
        "announced": "Connect Test <b>wallet</b> (org.example.wallet)",
        "window.ethereum": "Connect This browser's wallet (window.ethereum)",
    }
    assert wallet.text("wallets") == named[kind]
    wallet.sign_in()


# ---- links, servers and pages that lie


@in_browser
def test_what_a_link_fills_in_is_text_and_begins_nothing(site: Site):
    named = ("action", "role", "run", "amount", "ticket", "__proto__")
    wallet = site.wallet(query="?" + "&".join(f"{name}={quote(HOSTILE)}" for name in named))
    shown = HOSTILE.replace("\u202e", "\\u{202e}")

    assert wallet.text("action-error") == f"✕ the link asks for “{shown}”, which this page does not offer"
    assert wallet.text("role-error") == wallet.text("action-error")
    assert site.browser.run("document.getElementById('amount').value") == shown
    assert site.browser.run("document.querySelectorAll('img, b, main script').length") == 0
    wallet.sign_in()
    assert wallet.prepare().startswith("One value is not as expected")
    assert "expected tokens such as" in wallet.text("amount-error")
    assert site.browser.run("document.activeElement.id") == "amount"
    assert site.requests("/v1/moves/prepare") == 0


@in_browser
def test_values_that_change_after_preparing_are_prepared_again(site: Site):
    wallet = site.wallet()
    wallet.sign_in()
    wallet.prepare(action="stake.add", role="operator", amount="5000")
    wallet.fill_in(amount="1")

    assert wallet.told() == "The values changed: prepare it again."
    assert not site.browser.run("document.getElementById('review').checkVisibility()")


@in_browser
def test_a_server_that_is_set_up_for_another_address_gets_no_signature(site: Site):
    site.api.server.config = site.api.server.config.model_copy(update={"origin": "https://api.example.org"})
    wallet = site.wallet()
    wallet.press("#wallets button")
    wallet.press("#signin")
    wallet.until("document.getElementById('told').textContent.startsWith('Refused')")

    assert f"another address than {site.url}" in wallet.told()
    assert "personal_sign" not in wallet.asked


@in_browser
@pytest.mark.parametrize(
    "change",
    [
        {"domain": "api.example.org"},
        {"uri": "https://api.example.org"},
        {"address": "0x" + "11" * 20},
        {"chain_id": 1},
    ],
)
def test_a_sign_in_for_something_else_is_not_signed(
    site: Site, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
):
    monkeypatch.setattr(signin_routes, "SignIn", lambda **fields: SignIn(**{**fields, **change}))
    wallet = site.wallet()
    wallet.press("#wallets button")
    wallet.press("#signin")
    wallet.until("document.getElementById('told').textContent.startsWith('Refused')")

    assert "personal_sign" not in wallet.asked


def a_lie(site: Site, lie: str) -> tuple[Call, ...]:
    """What a server prepares that does not do what it was asked for."""
    chain, thief = site.api.server.chain(), site.world.bystander.account
    vault = chain.deployment.stake_vault
    approve, stake = (
        chain.call_of("AssayToken", "approve", vault, STAKE),
        chain.call_of("StakeVault", "stake", OPERATOR, STAKE),
    )
    return {
        "more stake": (approve, chain.call_of("StakeVault", "stake", OPERATOR, STAKE + 1)),
        "another role": (approve, chain.call_of("StakeVault", "stake", VERIFIER, STAKE)),
        "more approved": (chain.call_of("AssayToken", "approve", vault, 2**256 - 1), stake),
        "another spender": (chain.call_of("AssayToken", "approve", thief, STAKE), stake),
        "a transfer": (chain.call_of("AssayToken", "transfer", thief, STAKE), stake),
        "another contract": (approve, replace(stake, to=thief)),
        "another token": (replace(approve, to=thief), stake),
        "only an approval": (approve,),
        "three": (approve, approve, stake),
        "none": (),
        "more data": (approve, replace(stake, data=stake.data + "00" * 32)),
        "half a word more": (approve, replace(stake, data=stake.data + "00")),
    }[lie]


LIES = {
    "more stake": "the API prepared amount 5,000.000001 aUSD, asked was 5,000.000000 aUSD",
    "another role": "the API prepared role verifier, asked was operator",
    "more approved": "is no approval of the amount",
    "another spender": "is no approval of the amount",
    "a transfer": "transaction 1 that the API prepared is refused: the function a9059cbb belongs to no move",
    "another contract": "transaction 2 that the API prepared is refused: it is for 0x",
    "another token": "transaction 1 that the API prepared is refused: it is for 0x",
    "only an approval": "the API prepared approve(address,uint256) for stake.add",
    "three": "more or fewer transactions than the move has",
    "none": "more or fewer transactions than the move has",
    "more data": "not laid out as the function's",
    "half a word more": "not made of words",
}


@in_browser
@pytest.mark.parametrize("lie", LIES)
def test_a_move_that_is_not_the_one_asked_for_is_not_shown_to_be_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch, lie: str
):
    calls = a_lie(site, lie)
    planned = Planned(calls=calls, amount=STAKE, summary="stake 5,000.000000 aUSD as operator")
    monkeypatch.setattr(move_routes, "plan", lambda *_: planned)
    monkeypatch.setattr(
        Gateway, "_gas", lambda *_: [100_000] * len(calls)
    )  # a liar does not rehearse its lies
    wallet = site.wallet()
    wallet.sign_in()

    told = wallet.prepare(action="stake.add", role="operator", amount="5000")
    assert told.startswith("Refused: ") and LIES[lie] in told
    assert not site.browser.run("document.getElementById('review').checkVisibility()")


@in_browser
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("value", 10**15, "it would pay 0.001 of the chain's coin"),
        ("value", 2**60, "its value is no number"),
        ("chainId", 1, "it is for chain 1, expected 31337"),
        ("type", 0, "its type is 0"),
        ("gas", -1, "its gas is no number"),
    ],
)
def test_a_transaction_with_another_field_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, value: int, words: str
):
    plain = Transaction.plain
    monkeypatch.setattr(Transaction, "plain", lambda self: {**plain(self), name: value})
    wallet = site.wallet()
    wallet.sign_in()

    assert words in wallet.prepare(action="stake.add", role="operator", amount="5000")
    assert not site.browser.run("document.getElementById('review').checkVisibility()")


@in_browser
def test_every_word_of_a_claim_is_shown_or_has_one_value(site: Site):
    run, account, proof = b"r" * 32, site.world.bystander.account, [b"p" * 32, b"q" * 32]
    chain = site.api.server.chain()
    data = chain.call_of("EpochSettlement", "claim", run, 7, [(5, account, 1_234_567, proof)]).data
    words = [data[at : at + 64] for at in range(10, len(data), 64)]
    others = [
        data[:10] + "".join([*words[:at], f"{int(word, 16) ^ bit:064x}", *words[at + 1 :]])
        for at, word in enumerate(words)
        for bit in (1, 1 << 200)
    ]
    others += [data + words[0], data[:-64], data[:10], data.upper(), data.replace("0x", "")]
    site.wallet()

    whole, *changed = site.browser.run(
        f"""import("/wallet/moves.mjs").then(({{ readActions, readPrepared, readDeployment }}) =>
        Promise.all(["moves/actions", "deployment"].map((name) => fetch("/v1/" + name)))
        .then((answers) => Promise.all(answers.map((one) => one.json())))
        .then(([offered, told]) => [readActions(offered), told])
        .then(([actions, told]) => [actions.get("claim"), readDeployment(told, actions)])
        .then(([action, deployment]) => {json.dumps([data, *others])}.map((data) => {{
          const one = {{ type: 2, chainId: 31337, nonce: 0, value: 0, gas: 1, maxFeePerGas: 1,
            maxPriorityFeePerGas: 1, to: deployment.contracts.EpochSettlement, data }};
          const prepared = {{ action: "claim", account: "0x1", transactions: [one] }};
          const asked = {{ action: "claim", parameters: {{ run: "paper", epoch: 7, index: 5 }} }};
          try {{ return readPrepared(prepared, asked, "0x1", deployment, action)[0].arguments }}
          catch (error) {{ return error.message }}
        }})))"""
    )
    assert whole == {
        "run_id": f"0x{run.hex()}",
        "epoch": "7",
        "rows 1 index": "5",
        "rows 1 account": account.lower(),
        "rows 1 amount": "1.234567 aUSD",
        "rows 1 proof 1": f"0x{proof[0].hex()}",
        "rows 1 proof 2": f"0x{proof[1].hex()}",
    }
    allowed = [one for one in changed if isinstance(one, dict)]
    assert len(changed) == 2 * len(words) + 5 and whole not in changed
    assert {name for one in allowed for name in whole if one[name] != whole[name]} == {
        "run_id", "rows 1 account", "rows 1 amount", "rows 1 proof 1", "rows 1 proof 2"
    }  # fmt: skip


# ---- the page's tables against the code they are of


@in_browser
def test_the_page_offers_every_action_with_a_field_for_each_parameter(site: Site):
    wallet = site.wallet()
    ids = set(re.findall(r'id="([^"]+)"', PAGE.read_text()))
    offered = site.browser.run("[...document.getElementById('action').options].map(({ value }) => value)")

    assert offered == list(ACTIONS)
    for name, action in ACTIONS.items():
        wallet.fill_in(action=name)
        fields = site.browser.run(
            "[...document.querySelectorAll('#fields :is(input, select)')].map(({ id }) => id)"
        )
        assert fields == list(action.asked.model_fields), name
        assert not {*fields} & ids, "an element of the page has this name"


@in_browser
def test_what_is_typed_is_what_the_api_reads(site: Site):
    """Each kind of parameter, of the longest form: an order."""
    account = "0x" + "5A" * 20
    typed = {
        "spec_hash": "ab" * 32, "budget": "2.5", "epoch_cap": "1", "epochs": "3", "deadline": "1796000000",
        "lot": "0.000001", "operators": f"{account}, 0x{'6b' * 20}\n",
    }  # fmt: skip
    site.wallet()
    read = f"""import("/wallet/moves.mjs").then(({{ readActions, askedOf }}) => fetch("/v1/moves/actions")
        .then((answer) => answer.json()).then(readActions).then((actions) => [
          ["order.place", {json.dumps(typed)}], ["order.place", {json.dumps({**typed, "operators": "0x12"})}],
          ["claim", {{ run: "paper", epoch: "7", rows: "1 2,5" }}], ["claim", {{ run: "paper" }}],
          ["challenge.vote", {{ run_id: "{"0" * 64}", epoch: "0", digest: "{"1" * 64}", is_right: "false" }}],
        ].map(([name, given]) => {{
          try {{ return askedOf(actions.get(name), given).parameters }}
          catch (error) {{ return error.field }}
        }})))"""
    order, wrong, claim, lacking, vote = site.browser.run(read)

    assert order == {
        **typed, "spec_hash": "0x" + "ab" * 32, "budget": "2500000", "epoch_cap": "1000000", "epochs": 3,
        "deadline": 1796000000, "lot": "1", "operators": [account, "0x" + "6b" * 20],
    }  # fmt: skip
    assert (wrong, lacking) == ("operators", "epoch")
    assert claim == {"run": "paper", "epoch": 7, "rows": [1, 2, 5]}
    assert vote["is_right"] is False
    for name, given in (("order.place", order), ("claim", claim), ("challenge.vote", vote)):
        ACTIONS[name].asked.model_validate(given)


@in_browser
def test_a_new_action_goes_from_the_form_to_the_chain(site: Site, world: World):
    """A lot is locked, and its argument `commitment` is what the server made of the run's id."""
    wallet, run_id = site.wallet(), b"r" * 32
    world.as_(wallet.person).stake(OPERATOR, STAKE)
    until = world.bank.timestamp() + 86_400
    wallet.sign_in()
    wallet.prepare(action="stake.lock", role="operator", run_id=run_id.hex(), amount="5000", until=str(until))
    shown = wallet.text("review")
    assert wallet.told() == "Prepared. Nothing is sent yet."
    assert "lock(uint8,bytes32,uint128,uint64)" in shown and f"0x{run_id.hex()}" in shown

    wallet.press("#send")
    wallet.until("document.getElementById('told').textContent.startsWith('Done')")
    lot = world.bank.lot_of(wallet.person.account, OPERATOR, run_id)
    assert (lot.amount, lot.until) == (STAKE, until)


@in_browser
def test_amounts_are_exactly_those_of_the_command_line(site: Site):
    texts = [
        "1", "0.000001", "12.5", "1000000000000", "0.1", "0.3", "1234567.000010", "007", "0", "0.0",
        "-1", "1e3", "1,000", ".5", "5.", "0.0000001", "10000000000000", "", "０", "1 000", "0x10", "NaN",
    ]  # fmt: skip
    site.wallet()
    found = site.browser.run(
        f"""import("/wallet/moves.mjs").then(({{ readActions, askedOf }}) => fetch("/v1/moves/actions")
        .then((told) => told.json()).then(readActions)
        .then((actions) => {json.dumps(texts)}.map((amount) => {{
          try {{ return askedOf(actions.get("stake.add"), {{ role: "operator", amount }}).parameters.amount }}
          catch (error) {{ return error.field }}
        }})))"""
    )
    for text, units in zip(texts, found, strict=True):
        try:
            expected = str(parse_money(text))
        except ConfigError:
            expected = "amount"  # the field that is wrong
        assert units == ("amount" if expected == "0" else expected), text


# ---- how it looks and is served


@in_browser
def test_the_page_fits_a_narrow_screen_and_axe_finds_nothing(site: Site):
    if not AXE.exists():
        pytest.skip("no axe: make setup-dev")
    for stage in ("opened", "prepared"):
        wallet = site.wallet(query="?action=nothing")
        if stage == "prepared":
            wallet.sign_in()
            wallet.prepare(action="stake.add", role="operator", amount="5000")
            assert site.browser.run("document.activeElement.id") == "review-heading"
        for width in (NARROW, WIDE):
            for scheme in ("light", "dark"):
                with site.browser.screen(width, scheme):
                    assert site.browser.run("document.documentElement.scrollWidth") <= width
                    assert faults(site.browser, width == WIDE) == [], (stage, width, scheme)
    site.browser.run("document.querySelector('.field label').remove()")
    assert "label" in str(faults(site.browser, False))


def test_the_page_may_load_this_servers_files_and_nothing_else(world_api: ApiWorld):
    page = world_api.get("/wallet?action=%3Cscript%3E")
    assert (page.status_code, page.text) == (200, PAGE.read_text())
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].encode() == PAGE_POLICY
    for word in ("unsafe", "*", "data:", "http:", "https:"):
        assert word not in PAGE_POLICY.decode()
    for word in ("<style", " style=", " onclick", "javascript:", "http://", "https://", "<form action"):
        assert word not in page.text
    assert page.text.count("<script") == 1
    for name, path in FILES.items():
        file = world_api.get(f"/wallet/{name}")
        assert (file.status_code, file.text) == (200, path.read_text())
        assert f"/wallet/{name}" in page.text or f"./{name}" in FILES["wallet.mjs"].read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "Storage", "cookie", "eval(", "parseFloat"):
            assert word not in file.text
    for header, value in HEADERS:
        if header != b"content-security-policy":
            assert page.headers[header.decode()] == value.decode()


def test_the_page_links_to_an_explorer_only_where_the_servers_file_names_one(folder: Path):
    named = ApiWorld(folder, explorer="https://runs.example.org/x")
    page = named.get("/wallet")
    assert page.text.count('<a href="https://runs.example.org/x/">Explorer</a>') == 1
    assert page.headers["content-security-policy"].encode() == PAGE_POLICY
    without = ApiWorld(folder).get("/wallet")
    assert without.status_code == 200 and ">Explorer<" not in without.text


@pytest.mark.parametrize(
    "url", ["javascript:alert(1)", "https://u@a.org", 'https://a.org/"><b>', "//a.org", "https://a.org/?x"]
)
def test_what_is_no_plain_address_of_an_explorer_is_refused(url: str):
    with pytest.raises(ValidationError, match="explorer"):
        ServerFile(explorer=url)


@pytest.mark.parametrize(
    "path", ["/wallet/wallet.html", "/wallet/x.mjs", "/wallet/../app.py", "/wallet/%2e%2e/app.py"]
)
def test_no_other_file_is_served(world_api: ApiWorld, path: str):
    assert is_problem(world_api.get(path), 404)
    assert (
        world_api.get(path).headers["content-security-policy"].encode()
        == dict(HEADERS)[b"content-security-policy"]
    )


def test_a_wheel_holds_the_page():
    patterns = configuration()["tool"]["setuptools"]["package-data"]["assay.api"]
    for path in STATIC.iterdir():
        assert any(fnmatch(f"static/{path.name}", pattern) for pattern in patterns)
    assert {PAGE, *FILES.values()} == set(STATIC.iterdir())


def test_the_deployment_is_told_to_everybody(folder: Path, world: World):
    told = ApiWorld(folder, gateway=Gateway(world.rpc_url, world.deployment)).get("/v1/deployment").json()
    found = world.deployment
    assert (told["chain_id"], told["deployment_id"]) == (found.chain_id, found.deployment_id.hex())
    assert told["contracts"] == {name: getattr(found, field) for name, field in CONTRACTS.items()}
    assert is_problem(ApiWorld(folder).get("/v1/deployment"), 503, "not connected to a chain")
