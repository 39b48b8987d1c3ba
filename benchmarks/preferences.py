"""Preferences: the share of a DPO run's held-out pairs that its base and its delivered model rank rightly.

    assay localnet examples/base.toml && assay localnet examples/dpo.toml
    python -m benchmarks.preferences runs/dpo

In the reference class, so every machine prints the same figures. A model ranks a pair rightly if the chosen
completion has the higher log-probability. DPO's implicit reward does if the chosen gained more of it than the
rejected did since the base.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.bundle.read import read
from assay.protocol.errors import ConfigError
from assay.protocol.params import RunSpec
from assay.training.data.batches import read_tokens, validation_tokens
from assay.training.data.preferences import reference_nats
from assay.training.model.hugging_face import read_theta
from assay.training.reference.gradient import reference_loss


def ranked(spec: RunSpec, theta_P: NDArray[np.float32], tokens: NDArray[np.int64]) -> dict[str, float]:
    """Shares of pairs: that the base, the model and its implicit reward rank rightly; and the mean margin."""
    nats_S = np.array([reference_loss(spec.model.whole, theta_P, row[None]) for row in tokens])
    base_P, model_P = (nats[1::2] - nats[0::2] for nats in (reference_nats(tokens), nats_S))
    return {
        "base": float((base_P > 0).mean()),
        "model": float((model_P > 0).mean()),
        "implicit reward": float((model_P > base_P).mean()),
        "mean margin, nats": float((model_P - base_P).mean()),
    }


def main() -> None:
    """Print the figures of a run's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    folder = parser.parse_args().run
    spec = read(folder).spec
    if not spec.compute.is_dpo:
        raise ConfigError(f"{folder}: its loss is not that of DPO")
    tokens = validation_tokens(read_tokens(folder / "data", spec.data), spec, 2 * spec.split.held)
    theta_P = read_theta(folder / "bundle" / "model", spec.model.whole)
    print(f"{len(tokens) // 2} held-out pairs")
    for name, value in ranked(spec, theta_P, tokens).items():
        print(f"{name:<20}{value:.3f}")


if __name__ == "__main__":
    main()
