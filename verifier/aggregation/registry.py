"""Registry: aggregation rules by name, as run specs and simulations give them.

Room: verifier (pure). A name is a pipeline, read from left to right, joined by +:

    reputation  keeps the nodes whose earlier updates later rounds support
    (verifier/aggregation/reputation.py)
    normalize, clipping, arc    scale each node's blocks, where updates have amplitudes
    nnm, bucketing              replace nodes by sums of near ones, or of random pairs
    mean, trimmed-mean, ...     make one update of all

The names are those of byzfl (Normalize, Clipping, ARC, NNM, Bucketing, Average, TrMean, Median,
CenteredClipping, GeometricMedian, Krum, MultiKrum, MoNNA, CAF; SignVote is `decoded-vote`). Rules without
amplitudes to scale ignore the scale. An order may name those of `names.py`; other combinations work. Decoded
rules compute signs and no coefficients, so their wire is SIGNS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from assay.protocol.types import PeerId
from assay.protocol.update_rule import RuleSpec, Transform, Wire
from assay.training.codec.wire import Aggregate, Update
from assay.verifier.aggregation import decoded, robust
from assay.verifier.aggregation.decoded import Signs
from assay.verifier.aggregation.gram import buckets, nearest_neighbours
from assay.verifier.aggregation.mean import mean_over_senders
from assay.verifier.aggregation.robust import Mixing
from assay.verifier.aggregation.scales import SCALE_NAMES, raw, scale_of

Rule = Callable[[Mapping[PeerId, Update], int], Aggregate]
DecodedRule = Callable[[Mapping[PeerId, Update], int], Signs]

REPUTATION = "reputation+"
BUCKET_SIZE = 2
DECODED: Mapping[str, Callable[..., Signs]] = {
    "decoded-trimmed-mean": decoded.trimmed_mean_signs,
    "decoded-median": decoded.median_signs,
    "decoded-vote": decoded.vote_signs,
}
_ROBUST: Mapping[str, Callable[..., Aggregate]] = {
    "trimmed-mean": robust.trimmed_mean,
    "trimmed-mean-implied": partial(robust.trimmed_mean, zeros="implied"),
    "median": robust.median,
    "centered-clip": robust.centered_clip,
    "centered-clip-all": partial(robust.centered_clip, scope="all"),
    "geometric-median": robust.geometric_median,
    "krum": robust.krum,
    "multi-krum": robust.multi_krum,
    "monna": robust.monna,
    "caf": robust.caf,
}


def uses_reputation(name: str) -> bool:
    """Whether the rule gets only the updates of nodes in `reputation.admitted`."""
    return name.startswith(REPUTATION)


def rule_of(name: str, f: int, seed: bytes) -> Rule:
    """The aggregation rule of this name, parametrised to tolerate f Byzantine nodes.

    Args:
        name: One of `names.RULE_NAMES`, or stages in their order: at most one scale, then at most one
            mixing, then a rule. `reputation` goes with the mean, which then needs no f; it has no
            effect here: the caller leaves the nodes out.
        f: Byzantine nodes. A rule refuses n <= 2f with a ValueError.
        seed: Public, and new in each round; bucketing draws from it.

    Raises:
        ValueError: no rule has this name.
    """
    *stages, last = name.removeprefix(REPUTATION).split("+")
    scale = scale_of(stages.pop(0), f) if stages and stages[0] in SCALE_NAMES else raw
    mixings: dict[str, Mixing] = {
        "nnm": partial(nearest_neighbours, f=f),
        "bucketing": partial(buckets, size=BUCKET_SIZE, seed=seed),
    }
    mixing = mixings.get(stages.pop(0)) if stages and stages[0] in mixings else None
    is_mean = last == "mean" and mixing is None
    if stages or not (is_mean or (last in _ROBUST and not uses_reputation(name))):
        raise ValueError(f'no rule of aggregation is named "{name}"')
    if is_mean:
        return partial(mean_over_senders, f=0 if uses_reputation(name) else f, scale=scale)
    return partial(_ROBUST[last], f=f, scale=scale, mixing=mixing)


def check_aggregation(rule: RuleSpec) -> None:
    """Do nothing if there is a rule of this name; `check_spec` checks numbers only.

    Raises:
        ValueError: there is none, and no round would move a parameter; or a decoded rule has no wire.
    """
    named = rule.aggregation
    if named.name not in DECODED:
        rule_of(named.name, named.f, bytes(32))
    elif named.wire is not Wire.SIGNS or rule.compress.transform is not Transform.DCT:
        reason = "makes the signs of a DCT's step: expected the wire SIGNS, the transform DCT"
        raise ValueError(f'"{named.name}" {reason}')


def decoded_rule_of(name: str, f: int) -> DecodedRule:
    """The decoded rule of this name, one of `DECODED`."""
    return partial(DECODED[name], f=f)
