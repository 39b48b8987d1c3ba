"""Training summary: the public summary of training content, after the Commission's template.

Room: bundle (pure). Markdown. What a run cannot know is left to the provider: nothing is guessed, and no
box that is a legal judgement is ticked.

Reference:
    Regulation (EU) 2024/1689, Art. 53(1)(d); Commission template C(2025) 8311 of 5 December 2025.
"""

from __future__ import annotations

from assay.bundle.registry.document import Entry, ListedData
from assay.bundle.registry.text import TO_BE_FILLED, table

# The template's ranges of text, in tokens.
RANGES = (
    (10**9, "less than 1 billion tokens"),
    (10**13, "1 billion to 10 trillion tokens"),
    (None, "more than 10 trillion tokens"),
)


def training_summary(entry: Entry) -> str:
    """The Markdown text, from a registry entry."""
    return f"""# Public summary of training content

Made from the run's record after the template of Art. 53(1)(d) of Regulation (EU) 2024/1689. Entries in
italics are the provider's to fill: a run cannot know them. Whether the duty applies, the provider judges.

## 1. General information

{_general(entry)}

## 2. List of data sources

Every source that was trained on, as the data's manifest (`{entry.data.manifest}`) names it:

{_sources(entry)}

Which of the following kinds each source is, the manifest does not say:

{_kinds()}

## 3. Data processing aspects

{_processing(entry)}
"""


def size_range(tokens: int) -> str:
    """The template's range for this many tokens of text."""
    return next(label for bound, label in RANGES if bound is None or tokens < bound)


def _general(entry: Entry) -> str:
    model, data, declarations = entry.model, entry.data, entry.declared
    base = model.base
    depends = "none: drawn from a seed" if base is None else f"imported parameters, {base.state}"
    trained = data.tokens - data.held_out_tokens
    return table(
        ("Item", "Entry"),
        [
            ("1.1 Provider name and contact", declarations.provider or TO_BE_FILLED),
            ("1.1 Authorised representative", TO_BE_FILLED),
            ("1.2 Versioned model name", f"{model.name} {model.id}"),
            ("1.2 Model dependencies", depends),
            ("1.2 Date of placement on the Union market", TO_BE_FILLED),
            ("1.3 Modality", "text"),
            ("1.3 Training data size, text", f"{size_range(trained)} ({trained:,})"),
            ("1.3 Of which processed", f"{entry.tokens.processed:,} tokens"),
            ("1.3 Types of content", TO_BE_FILLED),
            ("1.3 Latest date of data acquisition", TO_BE_FILLED),
            ("1.3 Linguistic characteristics", TO_BE_FILLED),
            ("1.3 Other characteristics", _tokens_are(data)),
        ],
    )


def _tokens_are(data: ListedData) -> str:
    kind = "bytes" if data.tokenizer is None else f"of tokenizer {data.tokenizer}"
    return f"tokens are {kind}; {data.held_out_tokens:,} of them were held out and never trained on"


def _sources(entry: Entry) -> str:
    return table(
        ("Source", "Licence", "Files", "Documents", "Bytes of text", "Tokens"),
        [
            (
                source.source,
                source.licence,
                f"{source.files:,}",
                f"{source.documents:,}",
                f"{source.bytes:,}",
                f"{source.tokens:,}",
            )
            for source in entry.data.sources
        ],
    )


def _kinds() -> str:
    kinds = (
        "2.1 Publicly available datasets",
        "2.2.1 Datasets commercially licensed by rightsholders",
        "2.2.2 Private datasets obtained from other third parties",
        "2.3 Data crawled and scraped from online sources",
        "2.4 User data",
        "2.5 Synthetic data",
        "2.6 Other sources of data",
    )
    return table(("Kind", "Entry"), [(kind, TO_BE_FILLED) for kind in kinds])


def _processing(entry: Entry) -> str:
    return table(
        ("Item", "Entry"),
        [
            ("3.1 Respect of reservations of rights from text and data mining", TO_BE_FILLED),
            ("3.2 Removal of illegal content", TO_BE_FILLED),
            (
                "3.3 Other information",
                f"the data were fixed by a Merkle root ({entry.data.merkle_root}) before training; "
                "steps drawn at random were recomputed on these data",
            ),
        ],
    )
