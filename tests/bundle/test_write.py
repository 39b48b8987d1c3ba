"""Bundle: a stranger with the folder alone can check what the run was and where each unit went."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models

from assay.bundle.finished import Finished, Registered, Settled
from assay.bundle.inputs import RunInputs, check_item_texts, read_inputs
from assay.bundle.receipts.rounds import StepPay, facts_of, round_receipts
from assay.bundle.registry.document import read_entry
from assay.bundle.release import release_of
from assay.bundle.samples import CHARACTERS_MAX, SAMPLES, samples_of
from assay.bundle.write import write_bundle
from assay.chain.statements import certificate, sign_digest
from assay.ledger.settlement.ending import Ending
from assay.ledger.settlement.payouts import Unpaid, UnpaidReason
from assay.ledger.settlement.results import epoch_result, model_record
from assay.participant.declarations import Declarations
from assay.participant.links import extend
from assay.protocol.encoding.codec import decode, digest, encode
from assay.protocol.errors import ConfigError, Unavailable
from assay.protocol.messages import CertifiedManifest, TaskList
from assay.protocol.params import AdapterSpec, RunSpec, Target
from assay.protocol.types import NO_DIGEST, Digest
from assay.testing.members import RUN_ID, a_deployment, a_digest, a_hot_key, peer
from assay.testing.signed import NODES, VERIFIERS, a_history, a_spec
from assay.testing.specs import MANIFEST
from assay.training.data.chat_template import ChatTemplate
from assay.training.data.choices import Choices, tokenised
from assay.training.data.inventory import inventory
from assay.training.data.shards import ChatData
from assay.training.data.tokenizer import byte_tokenizer, byte_tokenizer_json
from assay.training.exact import initial_factors, initial_parameters
from assay.training.frozen import Frozen
from assay.training.layout import layout_of
from assay.training.model.adapter import merged
from assay.training.model.hugging_face import read_sizes, read_theta
from assay.training.model.presets import PRESETS
from assay.training.optimiser.public_state import state_digest
from assay.training.rounded import encode as in_few_bits
from tests.observer.ledger_service.test_bookkeeper import LINKS, TABLES
from tests.training.data.test_tokenizer import a_tokenizer

SPEC, DEPLOYMENT = a_spec(), a_deployment()
LAYOUT = layout_of(SPEC.model)


def finished() -> Finished:
    settled, previous = {}, NO_DIGEST
    for epoch, table in TABLES.items():
        result = epoch_result(SPEC, table, a_digest("model"), previous, 1)
        previous = Digest(DEPLOYMENT.digest(result))
        settled[epoch] = Settled(settlement=table, result=result, digest=previous, certificate=b"cert")
    return Finished(
        spec=SPEC,
        run_id=RUN_ID,
        deployment=DEPLOYMENT,
        links=tuple(LINKS),
        ending=Ending(
            rounds=SPEC.rounds, rounds_ordered=SPEC.rounds, epochs_funded=2, closed_by=None, closed_block=None
        ),
        settled=settled,
        theta=initial_parameters(SPEC.seed, LAYOUT.names, LAYOUT.shapes),
        inputs=RunInputs(manifest=MANIFEST, tokenizer=b"", base=None),
        state=state_digest(initial_parameters(SPEC.seed, LAYOUT.names, LAYOUT.shapes)),
        load=lambda name: b"blob " + name,
        release=release_of(ec.derive_private_key(7, ec.SECP256R1())),
        registered=registered(settled[max(settled)]),
        declarations=Declarations(provider="Acme", licence="MIT", version="1.2.3"),
        log_point=None,
    )


def registered(last: Settled) -> Registered:
    """On record, by everybody's hot keys."""
    trained_on = inventory(SPEC.data, MANIFEST).sha256()
    record = model_record(SPEC, SPEC.ordered, last.result, Digest(last.digest), trained_on, NO_DIGEST)
    record_id = DEPLOYMENT.digest(record)
    signatures = [sign_digest(record_id, a_hot_key(name)) for name in VERIFIERS]
    return Registered(record=record, record_id=record_id, certificate=certificate(record_id, signatures))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("out") / "bundle"
    write_bundle(made, finished())
    return made


def test_the_lists_that_nodes_have_shown_lie_beside_the_chain(tmp_path: Path):
    lists = tuple(TaskList(run_id=RUN_ID, node=peer(name), secret=a_digest(name)) for name in NODES[:2])

    write_bundle(tmp_path / "bundle", replace(finished(), task_lists=lists))

    found = {path.name: path.read_bytes() for path in (tmp_path / "bundle" / "tasks").iterdir()}
    assert found == {f"{one.node.hex()}.cbor": encode(one) for one in lists}


def receipts_in(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((folder / "receipts").iterdir())]


def test_the_links_in_it_are_a_checked_chain_from_the_spec_in_it(folder: Path):
    assert decode(RunSpec, (folder / "spec.cbor").read_bytes()) == SPEC
    run_state = a_history()
    for path in sorted((folder / "links").iterdir()):
        run_state = extend(run_state, decode(CertifiedManifest, path.read_bytes()))

    assert run_state.is_complete


def test_every_blob_that_the_chain_names_is_in_it_under_its_digest(folder: Path):
    commits = [signed.commit for link in LINKS for signed in link.manifest.commits]
    updates = {f"{commit.update.hex()}.bin" for commit in commits}
    aggregates = {f"{link.manifest.aggregate.hex()}.bin" for link in LINKS} - {f"{NO_DIGEST.hex()}.bin"}

    assert {path.name for path in (folder / "updates").iterdir()} == updates
    assert {path.name for path in (folder / "aggregates").iterdir()} == aggregates
    assert (folder / "updates" / min(updates)).read_bytes() == b"blob " + bytes.fromhex(min(updates)[:-4])


def test_the_model_is_the_parameters_under_the_names_that_transformers_knows(folder: Path):
    tensors = load_file(folder / "model" / "model.safetensors")
    config = json.loads((folder / "model" / "config.json").read_text())

    assert state_digest(read_theta(folder / "model", SPEC.model)) == state_digest(finished().theta)
    assert read_sizes(folder / "model") == SPEC.model
    assert config["model_type"] == "gpt2"
    assert tensors["transformer.wte.weight"].shape == (256, 64)
    zeros = [name for name in tensors if name.endswith(("c_attn.bias", "c_proj.bias", "c_fc.bias"))]
    real = sum(tensor.size for name, tensor in tensors.items() if name not in zeros)
    assert config["parameters"] == LAYOUT.parameters == real
    assert not any(tensors[name].any() for name in zeros)


def test_the_manifest_in_it_is_the_one_the_spec_names(folder: Path):
    inputs = read_inputs(SPEC, folder / "data", None)

    assert inputs.manifest == MANIFEST
    assert hashlib.sha256((folder / "data" / "manifest.json").read_bytes()).digest() == SPEC.data.manifest


@pytest.mark.parametrize("bits", [0, 8])
def test_an_adapter_is_delivered_by_itself_and_merged_and_its_base_is_brought(tmp_path: Path, bits: int):
    whole = replace(PRESETS["llama-130k"], vocabulary=256)
    layout = layout_of(whole)
    base_P = initial_parameters(2, layout.names, layout.shapes)
    base = Frozen(layout, in_few_bits(layout, base_P, bits) if bits else base_P, bits)
    adapter = AdapterSpec(rank=2, alpha=4, targets=(Target.Q, Target.V), base_bits=bits)
    model = replace(whole, base=state_digest(base.values()), adapter=adapter)
    spec, small = replace(SPEC, model=model), layout_of(model)
    theta = initial_factors(5, small.names, small.shapes) + np.float32(0.01)
    inputs = replace(finished().inputs, base=base)
    run = replace(finished(), spec=spec, inputs=inputs, theta=theta, links=(), settled={})

    write_bundle(tmp_path / "bundle", run)

    folder = tmp_path / "bundle"
    frozen = inputs.frozen(spec)
    assert np.array_equal(read_theta(folder / "model", whole), merged(model, frozen, theta))
    assert read_sizes(folder / "model") == replace(whole, base=NO_DIGEST)
    tensors = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert sum(tensor.size for tensor in tensors.values()) == small.parameters
    assert json.loads((folder / "adapter" / "adapter_config.json").read_text())["r"] == 2
    again = read_inputs(spec, folder / "data", folder / "base.npy")
    assert again.base is not None and np.array_equal(again.base.stored, base.stored)
    assert np.array_equal(again.start(spec), initial_factors(spec.seed, small.names, small.shapes))
    card = (folder / "model" / "README.md").read_text()
    assert model.base.hex() in card and "an adapter (LoRA) of rank 2 and alpha 4 on q, v" in card
    assert ("as it was imported, the layers' matrices rounded to 8 bits" in card) == bool(bits)
    assert card == (folder / "adapter" / "README.md").read_text()
    entry = read_entry((folder / "registry" / "entry.json").read_bytes())
    assert entry.model.adapter is not None and entry.model.adapter.parameters == small.parameters
    weights = (folder / "adapter" / "adapter_model.safetensors").read_bytes()
    assert entry.model.adapter.weights.sha256 == hashlib.sha256(weights).hexdigest()
    assert entry.model.base is not None and entry.model.parameters == layout.parameters
    assert ("rounded to 8 bits" in entry.model.started_from) == bool(bits)


def test_a_run_on_conversations_delivers_the_chat_template_it_was_trained_under(tmp_path: Path):
    template = ChatTemplate("{{ messages[0].content }}{{ eos_token }}é", {"eos_token": "</s>"})
    named = Digest(hashlib.sha256(template.to_json()).digest())
    chat = ChatData(template=named, sequence=17, conversations=1, cut=0, dropped=0, targets=1, padding=0)
    manifest = replace(MANIFEST, chat=chat)
    spec = replace(SPEC, data=replace(SPEC.data, manifest=manifest.digest()))
    inputs = replace(finished().inputs, manifest=manifest, chat=template)

    write_bundle(tmp_path / "bundle", replace(finished(), spec=spec, inputs=inputs, links=(), settled={}))

    folder = tmp_path / "bundle"
    config = json.loads((folder / "model" / "tokenizer_config.json").read_text())
    assert (config["chat_template"], config["eos_token"]) == (template.text, "</s>")
    assert (folder / "model" / "chat_template.jinja").read_text() == template.text
    assert read_inputs(spec, folder / "data", None).chat == template
    path = folder / "data" / "chat_template.json"
    path.write_bytes(template.to_json().replace(b"messages", b"Messages"))
    with pytest.raises(ConfigError, match="not the chat template that the data's manifest names"):
        read_inputs(spec, folder / "data", None)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        read_inputs(spec, folder / "data", None)


def test_a_run_with_choices_delivers_them_as_its_spec_names_them(tmp_path: Path):
    choices = Choices(name="sums.jsonl", items=(tokenised("2+3 =", ("5", "4"), 0, byte_tokenizer()),))
    spec, inputs = replace(SPEC, choices=choices.spec()), replace(finished().inputs, choices=choices)

    write_bundle(tmp_path / "bundle", replace(finished(), spec=spec, inputs=inputs, links=(), settled={}))

    assert read_inputs(spec, tmp_path / "bundle" / "data", None).choices == choices
    assert read_inputs(SPEC, tmp_path / "bundle" / "data", None).choices is None
    path = tmp_path / "bundle" / "data" / "choices.json"
    path.write_bytes(choices.to_json().replace(b'"gold":0', b'"gold":1'))
    with pytest.raises(ConfigError, match="not the choices this run committed to"):
        read_inputs(spec, tmp_path / "bundle" / "data", None)


def test_items_that_are_shown_as_others_than_the_model_answers_are_found(tmp_path: Path):
    honest = tokenised("2+3 =", ("5", "4"), 0, byte_tokenizer())
    easy = replace(honest, choice_tokens=((32, 53), (32, 0)))
    (tmp_path / "tokenizer.json").write_bytes(byte_tokenizer_json())
    for item in (honest, easy):
        choices = Choices(name="sums.jsonl", items=(honest, item))
        for tokenizer in (b"", b"a file"):
            inputs = replace(finished().inputs, choices=choices, tokenizer=tokenizer)
            if item is honest:
                check_item_texts(inputs, tmp_path)
                continue
            with pytest.raises(
                ConfigError, match=r"choices\.json: item 1: its tokens are not those of its text"
            ):
                check_item_texts(inputs, tmp_path)
    check_item_texts(finished().inputs, tmp_path)


def test_a_run_that_began_with_imported_parameters_brings_them(tmp_path: Path):
    theta = finished().theta
    spec = replace(SPEC, model=replace(SPEC.model, base=state_digest(theta)))
    inputs = replace(finished().inputs, base=Frozen(layout_of(SPEC.model), theta))
    write_bundle(tmp_path / "bundle", replace(finished(), spec=spec, inputs=inputs, links=(), settled={}))

    again = read_inputs(spec, tmp_path / "bundle" / "data", tmp_path / "bundle" / "base.npy")
    assert (again.start(spec) == theta).all()
    assert "imported parameters" in (tmp_path / "bundle" / "model" / "README.md").read_text()
    np.save(tmp_path / "other.npy", theta * np.float32(2))
    with pytest.raises(ConfigError, match="not the parameters this run starts from"):
        read_inputs(spec, tmp_path / "bundle" / "data", tmp_path / "other.npy")


def separated(separator: int | None, tokenizer: bytes = b"") -> Finished:
    """A run without rounds, whose documents end with a token."""
    manifest = replace(MANIFEST, separator=separator)
    return replace(
        finished(),
        spec=replace(SPEC, data=replace(SPEC.data, manifest=manifest.digest())),
        inputs=replace(finished().inputs, manifest=manifest, tokenizer=tokenizer),
        links=(),
        settled={},
        registered=None,
    )


def test_a_special_token_between_documents_is_the_end_of_text_of_the_delivered_model(tmp_path: Path) -> None:
    tokenizer = a_tokenizer(tmp_path / "tokenizer.json", "<x>", "<|endoftext|>").read_bytes()
    for separator, expected in ((1, "<|endoftext|>"), (5, None), (None, None)):
        write_bundle(tmp_path / str(separator), separated(separator, tokenizer))
        config = json.loads((tmp_path / str(separator) / "model" / "tokenizer_config.json").read_text())
        assert config.get("eos_token") == expected


def test_samples_follow_from_run_and_parameters_and_a_model_that_diverged_has_none() -> None:
    run = separated(0)
    assert len(samples_of(run)) == SAMPLES and samples_of(run) == samples_of(separated(0))
    assert samples_of(replace(run, run_id=NO_DIGEST)) != samples_of(run)
    assert samples_of(replace(run, theta=run.theta * np.float32(3))) != samples_of(run)
    for without in (
        separated(None),
        separated(10**6),
        separated(0, tokenizer=b"{}"),
        replace(run, theta=run.theta * np.float32(1e30)),
    ):
        assert samples_of(without) == ()


def test_samples_of_long_tokens_are_as_long_as_a_report_may_have(tmp_path: Path) -> None:
    library = Tokenizer(
        models.WordLevel({f"{token:05d}" * 200: token for token in range(256)}, "00000" * 200)
    )
    library.save(str(tmp_path / "tokenizer.json"))

    found = samples_of(separated(0, (tmp_path / "tokenizer.json").read_bytes()))

    assert max(map(len, found)) == CHARACTERS_MAX


def test_a_tokenizer_is_the_one_the_run_names_or_none_is_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = replace(SPEC, data=replace(SPEC.data, tokenizer=Digest(hashlib.sha256(b"merges").digest())))
    shutil.copy(folder / "data" / "manifest.json", tmp_path)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: cannot be read"):
        read_inputs(spec, tmp_path, None)

    for text in (b"merges", b"merges "):
        (tmp_path / "tokenizer.json").write_bytes(text)
        if text == b"merges":
            assert read_inputs(spec, tmp_path, None).tokenizer == text
        assert read_inputs(SPEC, tmp_path, None).tokenizer == b""  # its tokens are bytes
    with pytest.raises(ConfigError, match="not the tokenizer this run committed to"):
        read_inputs(spec, tmp_path, None)
    (tmp_path / "tokenizer.json").write_bytes(b"merges")
    monkeypatch.setattr("assay.bundle.inputs.FILE_BYTES_MAX", 5)
    with pytest.raises(ConfigError, match="not the tokenizer this run committed to"):
        read_inputs(spec, tmp_path, None)


def test_each_result_in_it_has_the_digest_that_was_signed(folder: Path):
    for epoch, table in TABLES.items():
        told = json.loads((folder / "settlements" / f"epoch-{epoch:03d}.json").read_text())
        assert bytes.fromhex(told["digest"]) == finished().settled[epoch].digest
        assert bytes.fromhex(told["result"]["table_hash"]) == table.table_hash
        assert sum(row["amount"] for row in told["rows"]) == told["result"]["total"] == table.total
        assert bytes.fromhex(told["certificate"]) == b"cert"


def test_every_contribution_has_a_receipt_that_leads_to_its_pay(folder: Path):
    receipts = receipts_in(folder)
    commits = {digest(signed.commit).hex() for link in LINKS for signed in link.manifest.commits}
    told = [one for receipt in receipts for one in receipt["contributions"]]

    assert {one["commit"] for one in told} == commits
    for one in told:
        row = TABLES[one["paid"]["epoch"]].rows[one["paid"]["row"]]
        assert (row.role, row.peer.hex(), one["paid"]["reason"]) == ("operator", one["node"], None)


def test_a_receipt_names_signers_and_every_verdict_on_the_step(folder: Path):
    receipts = receipts_in(folder)
    audited = [one for receipt in receipts for one in receipt["contributions"] if one["audit"]]
    verdicts = [signed.verdict for link in LINKS for signed in link.manifest.verdicts]

    assert receipts[0]["signers"] == [signer.hex() for signer in LINKS[0].certificate.verifiers]
    assert sum(len(one["audit"]["verdicts"]) for one in audited) == len(verdicts) > 0
    assert {one["audit"]["ruling"] for one in audited} == {"passed"}


def test_a_step_without_pay_says_why():
    table = TABLES[0]
    node = table.rows[0].peer
    unpaid = replace(
        table, unpaid=(Unpaid(round=1, node=node, reason=UnpaidReason.UNJUDGED),), rows=table.rows[1:]
    )

    receipts = list(round_receipts(SPEC, LINKS, facts_of(SPEC, RUN_ID, LINKS, TABLES), {0: unpaid}))

    pays = {(receipt.round, one.node): one.paid for receipt in receipts for one in receipt.contributions}
    assert pays[(1, node)] == StepPay(epoch=0, row=None, reason=UnpaidReason.UNJUDGED)
    assert pays[(0, node)].reason is UnpaidReason.ROUNDED
    assert pays[(3, node)].reason is UnpaidReason.UNSETTLED


def test_the_card_has_front_matter_and_the_digest_of_what_is_delivered(folder: Path):
    card = (folder / "model" / "README.md").read_text()

    assert card.startswith('---\nmodel_name: "tiny"\nlicense: mit\npipeline_tag: ')
    assert state_digest(finished().theta).hex() in card
    assert "| steps accepted | 18 |" in card


def test_a_folder_that_is_there_is_left_as_it_is(folder: Path):
    marker = folder / "model" / "config.json"
    before = marker.stat().st_mtime_ns

    write_bundle(folder, finished())

    assert marker.stat().st_mtime_ns == before


def test_a_writer_that_died_midway_leaves_nothing_under_the_name(tmp_path: Path):
    def missing(_name: Digest) -> bytes:
        raise Unavailable("blob is not here")

    with pytest.raises(Unavailable):
        write_bundle(tmp_path / "bundle", replace(finished(), load=missing))
    assert not (tmp_path / "bundle").exists()

    write_bundle(tmp_path / "bundle", finished())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]
