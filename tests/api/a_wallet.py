"""A wallet in a real browser's page, whose keys a test holds: it signs and sends to the test's chain."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eth_account import Account
from eth_account.messages import encode_defunct

from tests.contracts.chain_world import Person, World
from tests.explorer.a_browser import WAIT_S, Browser

_SCRIPT = (Path(__file__).parent / "a_wallet.mjs").read_text()
SCRIPTS = {  # how a wallet comes into a page
    "announced": _SCRIPT.replace("IS_ANNOUNCED", "true"),
    "window.ethereum": _SCRIPT.replace("IS_ANNOUNCED", "false"),
    "none": "",
}


class Refusal(Exception):
    """The wallet's answer to a request is this error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


@dataclass
class Wallet:
    """One person's wallet, and the page that it is in."""

    browser: Browser
    world: World
    person: Person
    chain_id: int = 31337
    can_switch: bool = True
    rejects: frozenset[str] = frozenset()  # methods that the person rejects
    holds: frozenset[str] = frozenset()  # methods that the person has not answered yet
    asked: list[str] = field(default_factory=list)  # methods
    sent: list[dict[str, Any]] = field(default_factory=list)  # transactions

    def until(self, script: str) -> Any:
        """The first value of an expression in the page that is true; the wallet answers meanwhile."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            self.serve()
            value = self.browser.run(script)
            if value:
                return value
            time.sleep(0.02)
        raise TimeoutError(f"{script} did not become true; the page says {self.told()!r}")

    def serve(self) -> None:
        """Answer what the page has asked the wallet so far."""
        kept = []
        while self.browser.called:
            request = json.loads(self.browser.called.pop(0))
            if request["method"] in self.holds:
                kept.append(json.dumps(request))
                continue
            self.asked.append(request["method"])
            result, error = None, None
            try:
                result = self._answer(request["method"], request["params"])
            except Refusal as refusal:
                error = refusal.error
            self.browser.run(f"walletAnswers({request['id']}, {json.dumps(result)}, {json.dumps(error)})")
        self.browser.called.extend(kept)

    def _answer(self, method: str, params: list[Any]) -> Any:
        if method in self.rejects:
            raise Refusal(4001, "User rejected the request.")
        match method:
            case "eth_requestAccounts" | "eth_accounts":
                return [self.person.account.lower()]  # as wallets give it: without a checksum
            case "eth_chainId":
                return hex(self.chain_id)
            case "wallet_switchEthereumChain":
                if not self.can_switch:
                    raise Refusal(4902, "Unrecognized chain ID.")
                self.chain_id = int(params[0]["chainId"], 16)
                self.tell("chainChanged", hex(self.chain_id))
                return None
            case "personal_sign":
                assert params[1].lower() == self.person.account.lower()
                statement = encode_defunct(hexstr=params[0])
                return "0x" + bytes(Account.sign_message(statement, self.person.key).signature).hex()
            case "eth_sendTransaction":
                return self._send(params[0])
            case "eth_getTransactionReceipt":
                return self.world.rpc(method, *params)
        raise Refusal(4200, f"no {method}")

    def _send(self, given: dict[str, Any]) -> str:
        assert given["from"].lower() == self.person.account.lower()
        self.sent.append(given)
        nonce = self.world.rpc("eth_getTransactionCount", self.person.account, "pending")
        whole = {
            **{name: value for name, value in given.items() if name != "from"},
            "nonce": nonce,
            "type": 2,
        }
        raw = bytes(Account.sign_transaction(whole, self.person.key).raw_transaction)
        return str(self.world.rpc("eth_sendRawTransaction", "0x" + raw.hex()))

    def tell(self, event: str, value: Any) -> None:
        """Have the wallet tell the page about a change of its own."""
        self.browser.run(f"walletTells({json.dumps(event)}, {json.dumps(value)})")

    # ---- a person at the page

    def told(self) -> str:
        return str(self.browser.run("document.getElementById('told').textContent"))

    def press(self, button: str) -> None:
        """Press a button once it can be pressed."""
        one = f"document.querySelector({json.dumps(button)})"
        self.until(f"{one} !== null && !{one}.disabled && {one}.checkVisibility()")
        self.browser.run(f"{one}.click()")

    def sign_in(self) -> None:
        self.press("#wallets button")
        self.press("#signin")
        self.until("document.getElementById('told').textContent === 'Signed in.'")

    def fill_in(self, **values: str) -> None:
        """Type these values."""
        for name, value in values.items():
            self.browser.run(
                f"""(one => {{ one.value = {json.dumps(value)};
                one.dispatchEvent(new Event("input", {{ bubbles: true }})) }})
                (document.getElementById({json.dumps(name)}))"""
            )

    def prepare(self, **values: str) -> str:
        """Have a move prepared: what the page says about it then."""
        self.fill_in(**values)
        self.press("#prepare")
        self.until("!document.getElementById('prepare').disabled")
        return self.told()

    def text(self, name: str) -> str:
        """What the element of this id shows."""
        return str(self.browser.run(f"document.getElementById({json.dumps(name)}).innerText"))
