"""The order form shows the command line's quote, tells what is wrong where it is, and no more."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path
from urllib.parse import urlencode

import pytest

from assay.chain.text.units import money_text
from assay.explorer.guard import ADDRESS_BYTES_MAX
from assay.explorer.pages.new_order import new_order_page, order_file
from assay.orders.form import FIELDS, START
from assay.orders.load import load_order
from assay.orders.price.quoted import quoted
from tests.explorer.an_explorer import asking
from tests.test_guides import parsed

pytestmark = pytest.mark.slow

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7777*7777}}"


def address(kind: str = "", **changes: str) -> str:
    return f"/orders/new{kind}?{urlencode({**START, **changes})}"


def test_the_page_its_json_and_its_file_say_the_same_as_the_command_line(tmp_path: Path):
    asked = {"rounds": "100", "source": "my text.jsonl", "price": "12.5", "seats": "9"}
    page, twin, file = (asking().get(address(kind, **asked)) for kind in ("", ".json", ".toml"))
    (tmp_path / "run.toml").write_text(file.text)
    quote = quoted(load_order(tmp_path / "run.toml"))

    assert file.headers["content-type"] == "application/toml"
    assert file.headers["content-disposition"] == 'attachment; filename="run.toml"'
    assert twin.json()["quoted"]["quote"] == quote.quote and twin.json()["toml"] == file.text
    for figure in (quote.at_most.gross, quote.at_most.fee, quote.escrow, quote.escrow_least, quote.lot):
        assert money_text(figure) in page.text
    assert f"--quote {quote.quote} --days 30" in page.text
    assert html.escape(file.text.strip()).replace("&quot;", "&#34;") in page.text


def test_the_form_keeps_what_was_typed_and_its_links_give_it_again():
    page = asking().get(address(name="mine", nodes="7", least_nodes=""))
    (download,) = re.findall(r'href="(/orders/new\.toml\?[^"]*)"', page.text)

    assert 'name="name" value="mine"' in page.text and 'name="nodes" value="7"' in page.text
    assert 'name = "mine"' in asking().get(html.unescape(download)).text
    assert asking().get("/orders/new").text.count("<option selected>") == 2
    assert set(re.findall(r' name="(\w+)"', page.text)) == set(FIELDS) | {"viewport"}


def test_an_error_is_at_its_field_and_in_the_list_and_there_is_no_file():
    page = asking().get(address(rounds="many", floor="half"))

    assert "No quote yet: 2 things are wrong." in page.text
    (rounds,) = re.findall(r'<input id="rounds"[^>]*>', page.text)
    assert 'aria-invalid="true"' in rounds and 'aria-describedby="rounds-hint rounds-error"' in rounds
    wrong = re.search(r'id="rounds-error"[^>]*>(.*?)</p>', page.text)
    assert wrong is not None and "expected a whole number" in wrong[1]
    assert "aria-invalid" not in re.findall(r'<input id="nodes"[^>]*>', page.text)[0]
    assert "order place" not in page.text
    none = asking().get(address(".toml", rounds="many"))
    assert none.status_code == 404 and "expected a whole number" in none.text


@pytest.mark.parametrize("field", FIELDS)
def test_whatever_is_typed_is_text_on_the_page(field: str):
    page = asking().get(address(**{field: HOSTILE}))

    assert page.status_code == 200
    for part in ("<script>alert", "<img", "60481729"):
        assert part not in page.text
    assert asking().get(address(".json", **{field: HOSTILE})).json()["groups"]
    assert asking().get(address(".toml", **{field: HOSTILE})).status_code in (200, 404)


@pytest.mark.parametrize(
    "query",
    [
        "base=/etc/passwd", "rounds=1&rounds=x", "%ff=%ff", "name=%00", "=", "a=" + "b" * 1900,
        "rounds=" + "9" * 1900,
    ],
)  # fmt: skip
def test_any_query_is_answered_with_a_page_and_no_quote(query: str):
    found = asking().get(f"/orders/new?{query}")

    assert found.status_code == 200 and "No quote yet" in found.text
    assert len(found.content) < 40_000


def test_an_address_with_everything_typed_fits_and_a_longer_one_is_refused():
    assert asking().get(address(source="x" * 300, licence="y" * 128, name="z" * 64)).status_code == 200
    assert asking().get(address(source="x" * ADDRESS_BYTES_MAX)).status_code == 414


def test_every_command_is_taken_by_the_command_line_and_holds_nothing_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("FILE.toml", "run.toml"):
        Path(name).write_text("")
    Path("members").mkdir()
    page = new_order_page({**START, "name": "x", "source": "$(reboot); `reboot`", "days": "9"})

    assert {parsed(shlex.split(line)[1:]) for _, line in page.commands} == {
        "order check", "order quote", "order place",
    }  # fmt: skip
    assert all(re.fullmatch(r"[a-zA-Z0-9 .-]+", line) for _, line in page.commands)
    assert page.commands[-1][1].endswith("--days 9")
    assert "$(reboot)" in order_file({**START, "source": "$(reboot); `reboot`"})
