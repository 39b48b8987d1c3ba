"""Declarations: a buyer's self-reported model metadata, copied to the registry entry and never verified.

Room: participant (pure). The registry entry contains the declarations, so a checker rebuilds the same entry.
"""

from __future__ import annotations

from dataclasses import dataclass

# 989.4e12 FLOP/s (dense bfloat16) at 700 W, two fifths of it in use.
ACCELERATOR_FLOP_PER_JOULE = 565_000_000_000
ACCELERATOR_SOURCE = (
    "assumed, not measured: NVIDIA H100 SXM datasheet, 989.4 TFLOP/s dense bfloat16 at 700 W, 40 % in use as "
    "in arXiv:2407.21783 (38 to 43 %); hosts and cooling not counted; processors take many times as much"
)
WORDS_MAX = 512
FLOP_MAX = 10**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """A buyer's declarations. Empty text and None mean not declared."""

    provider: str = ""  # whoever places the model on the market
    licence: str = ""  # of the model
    base_flop: int | None = None  # spent on the imported parameters before this run
    flop_per_joule: int = ACCELERATOR_FLOP_PER_JOULE
    flop_source: str = ACCELERATOR_SOURCE
    version: str = ""  # of the program that the buyer ran

    def __post_init__(self) -> None:
        for name in ("provider", "licence", "flop_source", "version"):
            text = getattr(self, name)
            if not isinstance(text, str) or len(text) > WORDS_MAX or not text.isprintable():
                raise ValueError(f"{name}: expected one line of at most {WORDS_MAX} characters")
        if not _is_count(self.flop_per_joule) or self.flop_per_joule < 1:
            raise ValueError(f"flop_per_joule is {self.flop_per_joule!r}, expected a whole number above 0")
        if self.base_flop is not None and not _is_count(self.base_flop):
            raise ValueError(f"base_flop is {self.base_flop!r}, expected a whole number")
        if self.flop_per_joule != ACCELERATOR_FLOP_PER_JOULE and self.flop_source == ACCELERATOR_SOURCE:
            raise ValueError("flop_per_joule is not the default, so flop_source must say where it is from")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= FLOP_MAX


NO_DECLARATIONS = Declarations()
