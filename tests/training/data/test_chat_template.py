"""Chat template: what of a conversation is trained on, for templates as they are published."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, processors

from assay.protocol.errors import ConfigError
from assay.training.data import bounded
from assay.training.data import chat_template as module
from assay.training.data.chat_template import (
    TEXT_MAX,
    ChatTemplate,
    chat_tokens,
    default_template,
    read_chat_template,
)
from assay.training.data.conversations import Message
from assay.training.data.tokenizer import byte_tokenizer, byte_tokenizer_json, load_tokenizer

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_2 = """\
{{ bos_token }}{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate') }}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] | trim + eos_token }}
    {%- endif %}
{% endfor %}"""
GENERATION = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "<a>{% generation %}{{ m.content }}</a>{% endgeneration %}"
    "{% else %}<u>{{ m.content }}</u>{% endif %}{% endfor %}"
)
TALK = (
    Message("user", "How much?", False),
    Message("assistant", "4 €.", True),
    Message("user", "Sure?", False),
    Message("assistant", "Yes", True),
)


@pytest.fixture(autouse=True, scope="module")
def _one_process():
    """One for all templates of this file: each takes half a second to start."""
    process = bounded.BoundedProcess("the chat template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BoundedProcess", lambda _: process)
        yield


def shown(text: str, tokens: dict[str, str] | None = None, talk=TALK) -> str:
    """The bytes that are trained on, with | in place of a stretch that is not."""
    found = chat_tokens(ChatTemplate(text, tokens or {}), byte_tokenizer())(talk)
    body = bytes(np.where(found < 0, 0xFF, found).astype(np.uint8))
    parts = [part.decode() for part in body.split(b"\xff") if part]
    return "|".join(parts)


def test_the_assistants_part_is_trained_on_with_its_end_marker():
    assert shown(CHATML) == "4 €.<|im_end|>\n|Yes<|im_end|>\n"
    assert shown(LLAMA_2, {"bos_token": "<s>", "eos_token": "</s>"}) == " 4 €.</s>|Yes</s>".replace("|", "| ")
    assert shown(GENERATION) == "4 €.</a>|Yes</a>"
    assert shown(default_template(byte_tokenizer()).text) == "4 €.\0\n|Yes\0\n"


def test_a_template_sees_that_there_are_no_tools():
    asking = "{% if tools is not none or documents is not none %}{{ raise_exception('some') }}{% endif %}"

    assert shown(asking + CHATML) == shown(CHATML)


def test_an_answer_that_is_not_trained_on_is_masked():
    talk = (TALK[0], Message("assistant", "4 €.", False), *TALK[2:])

    assert shown(CHATML, talk=talk) == "Yes<|im_end|>\n"
    with pytest.raises(ValueError, match="weight = 0 is not supported"):
        shown(GENERATION, talk=talk)


def test_every_token_stays_what_the_whole_text_has(tmp_path):
    tokenizer = byte_tokenizer()
    found = chat_tokens(ChatTemplate(CHATML, {}), tokenizer)(TALK)

    text = "".join(f"<|im_start|>{one.role}\n{one.content}<|im_end|>\n" for one in TALK)
    assert bytes(np.where(found < 0, ~found, found).astype(np.uint8)).decode() == text


def test_a_token_that_is_partly_the_assistants_is_trained_on(tmp_path):
    words = {word: number for number, word in enumerate(["<u>q</u>", "<a>", "yes", "</a>", "[UNK]"])}
    library = Library(models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(["<u>q</u>", "<a>", "</a>"])
    library.save(str(tmp_path / "tokenizer.json"))
    talk = (Message("user", "q", False), Message("assistant", "yes", True))

    found = chat_tokens(ChatTemplate(GENERATION, {}), load_tokenizer(tmp_path / "tokenizer.json"))(talk)

    assert found.tolist() == [~0, ~1, 2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (LLAMA_2.replace("!=", "=="), "refuses it .Conversation roles must alternate"),
        ("{{ messages[9].content }}", "refuses it"),
        ("{{ strftime_now('%d') }}", "refuses it .'strftime_now' is undefined"),
        ("{{ messages.__class__.__mro__ }}", "refuses it"),
        ("{{ messages.append(1) }}", "refuses it"),
        ("{% for i in range(10000000) %}x{% endfor %}", "refuses it"),
        ("{{ 1 / 0 }}", "refuses it"),
        (
            "{% for m in messages[-1:] %}{{ m.content }}{% endfor %}",
            "does not write message 2 behind its prompt",
        ),
        ("{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}", "lie in each other"),
    ],
)
def test_a_template_that_fails_or_does_not_show_the_assistants_part_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        shown(text)


def test_what_a_template_writes_is_bounded():
    doubling = "{% for i in range(9999) %}" + "{{ 'x' * 9999 }}" + "{% endfor %}"

    with pytest.raises(ValueError, match=f"writes more than {TEXT_MAX} characters"):
        shown(doubling)


@pytest.mark.parametrize(
    "text",
    [
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(31) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% for m in messages %}{{ m.content.ljust(4000000000) }}{% endfor %}",
        "{% for m in messages %}{{ m.content * 4000000000 }}{% endfor %}",
        "{{ '%4000000000d' % 1 }}",  # constant, so computed when the template is read
    ],
)
def test_a_template_that_takes_all_memory_ends_a_child_and_not_this_process(text, monkeypatch):
    monkeypatch.setattr(bounded, "MEMORY_BYTES", 1 << 29)
    monkeypatch.setattr(module, "BoundedProcess", bounded.BoundedProcess)
    assert shown(CHATML) == "4 €.<|im_end|>\n|Yes<|im_end|>\n"

    with pytest.raises((ValueError, ConfigError), match="that reads the chat template ended"):
        shown(text)


def test_spaces_that_a_tokenizer_trims_off_its_spans_are_trained_on(tmp_path):
    library = Library.from_str(byte_tokenizer_json().decode())
    library.post_processor = processors.ByteLevel(trim_offsets=True)  # as in GPT-2's and Llama 3's
    library.save(str(tmp_path / "tokenizer.json"))
    talk = (Message("user", "  x ", False), Message("assistant", "  y ", True))

    found = chat_tokens(ChatTemplate(GENERATION, {}), load_tokenizer(tmp_path / "tokenizer.json"))(talk)

    assert bytes(found[found >= 0].astype(np.uint8)) == b"  y </a>"


@pytest.mark.parametrize("text", [CHATML, GENERATION], ids=["chatml", "generation"])
def test_transformers_writes_the_same_text_and_finds_the_same_part(tmp_path, text):
    transformers = pytest.importorskip("transformers", reason="needs transformers (pip install 'assay[hf]')")
    (tmp_path / "tokenizer.json").write_bytes(byte_tokenizer_json())
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    messages = [{"role": one.role, "content": one.content} for one in TALK]

    ours = chat_tokens(ChatTemplate(text, {}), load_tokenizer(tmp_path / "tokenizer.json"))(TALK)

    found = theirs.apply_chat_template(
        messages, chat_template=text, return_dict=True, return_assistant_tokens_mask=text == GENERATION
    )
    assert np.where(ours < 0, ~ours, ours).tolist() == found["input_ids"]
    if text == GENERATION:
        assert (ours >= 0).tolist() == [bool(one) for one in found["assistant_masks"]]


def test_a_message_cannot_forge_the_marks_of_what_is_generated():
    with pytest.raises(ValueError, match="holds U"):
        shown(GENERATION, talk=(Message("user", "\ufdd0x\ufdd1", False), TALK[1]))


def test_no_template_and_no_jinja_are_named(monkeypatch):
    with pytest.raises(ConfigError, match="is not one of Jinja's"):
        shown("{% for %}")
    monkeypatch.setattr(module, "BoundedProcess", lambda _: SimpleNamespace(call=lambda what, *of: what(*of)))
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match=r"pip install 'assay\[chat\]'"):
        shown(CHATML)


def test_a_template_is_read_as_it_was_written_and_nothing_else_is():
    template = ChatTemplate(CHATML, {"eos_token": "</s>"})

    assert read_chat_template(template.to_json()) == template
    for body in (b"{}", b"[]", template.to_json() + b"\n", ChatTemplate("x", {"auto_map": "evil"}).to_json()):
        with pytest.raises(ValueError):
            read_chat_template(body)


@pytest.mark.parametrize("end", ["</s>", "it's", "\\", "é", ""])
def test_the_default_template_ends_an_answer_with_the_separator(end):
    template = default_template(replace(byte_tokenizer(), end=end))

    assert shown(template.text, talk=TALK[:2]) == f"4 €.{end or '<|end|>'}\n"
