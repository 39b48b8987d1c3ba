"""Chat template: conversations as text, and which of it a model learns to write.

Room: training (edge: a child process). A template is the Jinja program that a model's folder has for
`transformers`, and sees here what it sees there: `messages`, `add_generation_prompt`, the names of special
tokens, `raise_exception`, no tools; but not the date (`strftime_now`), so that equal files give equal tokens.
It may be anybody's: it runs in a sandbox without files or attributes, in a child process whose memory and
time are bounded.

Trained on is what a template adds for an assistant's message after the prompt for one, so the end marker too.
A template with `{% generation %}` blocks says so itself, as in `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.json_text import canonical_json, parse_json, read_plain
from assay.protocol.errors import ConfigError
from assay.training.data.bounded import BoundedProcess
from assay.training.data.conversations import ASSISTANT, Conversation
from assay.training.data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

TEXT_MAX = 1 << 24  # characters that one conversation may become
TEMPLATE_MAX = 1 << 20  # characters
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_Tokens = tuple[tuple[str, str], ...]
_Span = tuple[int, int]
_BEGIN, _END = "\ufdd0", "\ufdd1"  # around what is generated; Unicode has no such characters

_DEFAULT = """\
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + END + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}
"""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template and the special tokens that it may name, by `SPECIAL_TOKENS`."""

    text: str
    tokens: Mapping[str, str]

    def to_json(self) -> bytes:
        """The canonical bytes whose SHA-256 a data manifest names."""
        return canonical_json({"chat_template": self.text, "tokens": dict(self.tokens)})


@dataclass(frozen=True, slots=True)
class _File:
    chat_template: str
    tokens: Mapping[str, str]


def read_chat_template(body: bytes) -> ChatTemplate:
    """The template of a `chat_template.json`.

    Raises:
        ValueError: it is none.
    """
    found = read_plain(_File, parse_json(body))
    template = ChatTemplate(found.chat_template, found.tokens)
    if template.to_json() != body or not found.tokens.keys() <= set(SPECIAL_TOKENS):
        raise ValueError("is not a chat template in canonical JSON")
    return template


def default_template(tokenizer: Tokenizer) -> ChatTemplate:
    """Messages under their roles, each followed by the tokenizer's separator, which then ends an answer."""
    end = (tokenizer.end or "<|end|>").encode("unicode_escape").decode().replace("'", "\\'")
    return ChatTemplate(_DEFAULT.replace("END", f"'{end}'"), {})


def chat_tokens(template: ChatTemplate, tokenizer: Tokenizer) -> Callable[[Conversation], NDArray[np.int64]]:
    """The function from a conversation to its tokens, where a masked token t is ~t.

    A token is trained on if any character of it is. The function raises ValueError where the template refuses
    a conversation, writes too much, takes too much memory or time, or does not show which part is the
    assistant's.

    Raises:
        ConfigError: Jinja is not installed, or this is no Jinja template.
    """
    named, process = (template.text, tuple(template.tokens.items())), BoundedProcess("the chat template")
    try:
        process.call(_check, *named)
    except ValueError as cause:  # what is constant in a template is computed once, here
        raise ConfigError(str(cause)) from None

    def tokens_of(conversation: Conversation) -> NDArray[np.int64]:
        text, spans = process.call(_trained_text, *named, conversation)
        is_trained = np.zeros(len(text), np.bool_)
        for begin, end in spans:
            is_trained[begin:end] = True
        ids, first, last = tokenizer.located(text)
        before = np.concatenate(([0], np.cumsum(is_trained)))  # trained characters before each
        return np.where(before[last] > before[first], ids, ~ids)

    return tokens_of


def _check(text: str, tokens: _Tokens) -> None:
    _compiled(text, tokens)


def _trained_text(text: str, tokens: _Tokens, conversation: Conversation) -> tuple[str, list[_Span]]:
    """A conversation's text, and the spans of characters that are trained on."""
    rendered = _compiled(text, tokens)
    messages = [{"role": one.role, "content": one.content} for one in conversation]
    if any(mark in one.content for one in conversation for mark in (_BEGIN, _END)):
        raise ValueError("a message holds U+FDD0 or U+FDD1, which are no characters")
    marked = rendered(messages, False)
    if _BEGIN in marked:
        return _as_marked(marked, conversation)
    spans = list[_Span]()
    for index, message in enumerate(conversation):
        if not message.is_trained:
            continue
        prompt, answered = rendered(messages[:index], True), rendered(messages[: index + 1], False)
        is_behind = len(answered) > len(prompt) and answered.startswith(prompt)
        if not (is_behind and marked.startswith(answered)):
            raise ValueError(
                f"the chat template does not write message {index + 1} behind its prompt, so the assistant's "
                "part is not known; a template with {% generation %} blocks can say it"
            )
        spans.append((len(prompt), len(answered)))
    return marked, spans


def _as_marked(marked: str, conversation: Conversation) -> tuple[str, list[_Span]]:
    if not all(one.is_trained for one in conversation if one.role == ASSISTANT):
        raise ValueError("weight = 0 is not supported by a template with {% generation %} blocks")
    text, spans = "", list[_Span]()
    for index, piece in enumerate(marked.split(_BEGIN)):
        inside, end, outside = piece.partition(_END) if index else ("", _END, piece)
        if not end or _END in outside:
            raise ValueError("the chat template's {% generation %} blocks lie in each other")
        spans.append((len(text), len(text) + len(inside)))
        text += inside + outside
    return text, spans


@lru_cache(1)
def _compiled(text: str, tokens: _Tokens) -> Callable[[list[dict[str, str]], bool], str]:
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigError(
            "conversations need jinja2 for chat templates, which is not installed (pip install 'assay[chat]')"
        ) from None

    class Generation(Extension):
        """Marks what is between `{% generation %}` and `{% endgeneration %}`."""

        tags = {"generation"}  # noqa: RUF012 - as the library declares it

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Callable[[], str]) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    try:
        if len(text) > TEMPLATE_MAX:
            raise ConfigError(f"the chat template has more than {TEMPLATE_MAX} characters")
        compiled: Template = environment.from_string(text)
    except TemplateError as cause:
        raise ConfigError(f"the chat template is not one of Jinja's ({cause})") from None

    def rendered(messages: list[dict[str, str]], is_prompt: bool) -> str:
        parts, size = [], 0
        named = {"messages": messages, "tools": None, "documents": None, **dict(tokens)}
        given = {**named, "add_generation_prompt": is_prompt}
        try:
            for part in compiled.generate(given):
                parts.append(part)
                size += len(part)
                if size > TEXT_MAX:
                    raise ValueError(f"the chat template writes more than {TEXT_MAX} characters")
        except (
            TemplateError,
            TypeError,
            ArithmeticError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as cause:
            raise ValueError(f"the chat template refuses it ({cause or type(cause).__name__})") from None
        return "".join(parts)

    return rendered
