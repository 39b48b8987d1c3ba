"""Measure: what a run really pays an hour, from how many of a node's steps have counted.

Room: fleet (pure). Steps are counted once they were accepted, and no longer once they were found unpaid;
money itself comes an epoch later. Time goes on while rounds do not, so a run that stands still pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3_600
SAMPLES_MAX = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """How many steps of a node counted at a time, Unix seconds."""

    at: int
    counted: int


def with_sample(samples: tuple[Sample, ...], at: int, counted: int, window_s: int) -> tuple[Sample, ...]:
    """Samples with one more, of which the oldest is just older than the window; fewer where they come fast.

    Args:
        samples: Ascending by time.
        at: Unix time.
        counted: Steps.
        window_s: Over which pay is measured.
    """
    if samples and at - samples[-1].at < window_s // (SAMPLES_MAX // 2):
        return samples
    found = (*samples, Sample(at, counted))
    while len(found) > 2 and found[1].at <= at - window_s:
        found = found[1:]
    return found


def measured_pay(
    samples: tuple[Sample, ...], now: int, counted: int, step_pay_micro: int, window_s: int
) -> int | None:
    """Token units an hour since the oldest sample; None if that is less than a window ago.

    Args:
        samples: From `with_sample`.
        now: Unix time.
        counted: Steps that count now.
        step_pay_micro: Of one, 10^-6 token unit; of the last, where they differ.
        window_s: As there.
    """
    if not samples or now - samples[0].at < window_s:
        return None
    steps = max(counted - samples[0].counted, 0)
    return steps * step_pay_micro * HOUR_S // (now - samples[0].at) // 10**6
