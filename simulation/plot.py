"""Plot: draws losses of simulated trainings against steps and against bytes.

Room: simulation (edge: writes one file).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from assay.simulation.round import SimRound


def plot_rounds(path: Path, curves: Mapping[str, Sequence[SimRound]], *, steps: int) -> None:
    """Draw every curve twice: over optimiser steps, and over what one node has uploaded.

    Args:
        path: A PNG file; replaced if it is there.
        curves: Rounds by their name in the legend. With one curve its training loss is drawn too.
        steps: Optimiser steps of a node in all, the same for every curve.
    """
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    by_step, by_byte = figure.subplots(1, 2, sharey=True)
    for name, rounds in curves.items():
        done = np.array([(one.round + 1) * steps / len(rounds) for one in rounds])
        sent = np.cumsum([one.update_bytes for one in rounds]) / 1e6
        at = [place for place, one in enumerate(rounds) if one.validation is not None]
        losses = [one.validation for one in rounds if one.validation is not None]
        if len(curves) == 1:
            by_step.plot(done, [one.loss for one in rounds], color="0.75", label="training")
            name = "validation"
        for axes, over in ((by_step, done), (by_byte, sent)):
            axes.plot(over[at], losses, "o-", markersize=3, label=name)
    by_step.set(xlabel="steps of a node", ylabel="loss, nats per token")
    by_byte.set(xlabel="uploaded by a node, MB (log scale)", xscale="log")
    by_byte.xaxis.set_minor_formatter(NullFormatter())
    by_byte.xaxis.set_major_formatter("{x:g}")
    by_step.legend()
    for axes in (by_step, by_byte):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
