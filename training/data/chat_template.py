"""Chat template: conversations as text, and which of it a model learns to write.

Room: training (pure). A template is the Jinja program that a model's folder has for `transformers`, and sees
here what it sees there: `messages`, `add_generation_prompt`, the names of special tokens, `raise_exception`,
no tools; but not the date (`strftime_now`), so that equal files give equal tokens. It may be anybody's: it
runs in a sandbox without files or attributes, and its output is bounded; its time is not.

Trained on is what a template adds for an assistant's message after the prompt for one, so the end marker too.
A template with `{% generation %}` blocks says so itself, as in `transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from assay.protocol.encoding.json_text import canonical_json, parse_json, read_plain
from assay.protocol.errors import ConfigError
from assay.training.data.conversations import ASSISTANT, Conversation
from assay.training.data.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

TEXT_MAX = 1 << 24  # characters that one conversation may become
TEMPLATE_MAX = 1 << 20  # characters
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
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
    a conversation, writes too much, or does not show which part is the assistant's.

    Raises:
        ConfigError: Jinja is not installed, or this is no Jinja template.
    """
    rendered = _compiled(template)

    def tokens_of(conversation: Conversation) -> NDArray[np.int64]:
        text, is_trained = _trained_text(rendered, conversation)
        ids, first, last = tokenizer.located(text)
        before = np.concatenate(([0], np.cumsum(is_trained)))  # trained characters before each
        return np.where(before[last] > before[first], ids, ~ids)

    return tokens_of


def _trained_text(
    rendered: Callable[[list[dict[str, str]], bool], str], conversation: Conversation
) -> tuple[str, NDArray[np.bool_]]:
    """A conversation's text, and for each character whether it is trained on."""
    messages = [{"role": one.role, "content": one.content} for one in conversation]
    if any(mark in one.content for one in conversation for mark in (_BEGIN, _END)):
        raise ValueError("a message holds U+FDD0 or U+FDD1, which are no characters")
    marked = rendered(messages, False)
    if _BEGIN in marked:
        return _as_marked(marked, conversation)
    is_trained = np.zeros(len(marked), np.bool_)
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
        is_trained[len(prompt) : len(answered)] = True
    return marked, is_trained


def _as_marked(marked: str, conversation: Conversation) -> tuple[str, NDArray[np.bool_]]:
    if not all(one.is_trained for one in conversation if one.role == ASSISTANT):
        raise ValueError("weight = 0 is not supported by a template with {% generation %} blocks")
    parts, is_trained = [], list[NDArray[np.bool_]]()
    for index, piece in enumerate(marked.split(_BEGIN)):
        inside, end, outside = piece.partition(_END) if index else ("", _END, piece)
        if not end or _END in outside:
            raise ValueError("the chat template's {% generation %} blocks lie in each other")
        parts += [inside, outside]
        is_trained += [np.ones(len(inside), np.bool_), np.zeros(len(outside), np.bool_)]
    return "".join(parts), np.concatenate(is_trained)


def _compiled(template: ChatTemplate) -> Callable[[list[dict[str, str]], bool], str]:
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

    class Sandbox(ImmutableSandboxedEnvironment):
        """Multiplication makes no text or list of unbounded size."""

        intercepted_binops = frozenset("*")

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sizes = [len(one) for one in (left, right) if hasattr(one, "__len__")]
            factors = [one for one in (left, right) if isinstance(one, int)]
            if sizes and factors and sizes[0] * factors[0] > TEXT_MAX:
                raise TemplateError(f"a product of more than {TEXT_MAX} items")
            return super().call_binop(context, operator, left, right)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    try:
        if len(template.text) > TEMPLATE_MAX:
            raise ConfigError(f"the chat template has more than {TEMPLATE_MAX} characters")
        compiled: Template = environment.from_string(template.text)
    except TemplateError as cause:
        raise ConfigError(f"the chat template is not one of Jinja's ({cause})") from None

    def rendered(messages: list[dict[str, str]], is_prompt: bool) -> str:
        parts, size = [], 0
        named = {"messages": messages, "tools": None, "documents": None, **template.tokens}
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
