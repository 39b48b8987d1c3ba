"""Schedule: the learning rate over a run from integer parameters, with equal bits on every machine.

Room: training (pure). No machine's libm enters: the cosine is Bhaskara's rational
approximation (largest error 0.0022 of the peak), and one division by 10^9 ends in float32.
"""

from __future__ import annotations

import numpy as np

from assay.protocol.update_rule import PPM, Curve, ScheduleSpec


def rate(schedule: ScheduleSpec, rounds: int, round_id: int, *, steps: int = 1, step: int = 0) -> np.float32:
    """The rate of one step of one round.

    Args:
        schedule: The curve.
        rounds: Rounds of the run.
        round_id: Which of them, from 0.
        steps: Steps in a round; warm-up and decay are given in rounds and run by step.
        step: Which step of the round, from 0.
    """
    return np.float32(rate_nano(schedule, rounds * steps, round_id * steps + step, steps) / 1e9)


def rate_nano(schedule: ScheduleSpec, total: int, at: int, steps: int = 1) -> int:
    """The rate in units of 10^-9 at step `at` of `total`, with `steps` of them in a round."""
    warmup, peak = schedule.warmup_rounds * steps, schedule.peak_nano
    if at < warmup:
        return peak * (at + 1) // warmup
    floor = peak * schedule.floor_ppm // PPM
    if schedule.curve is Curve.COSINE:
        span = max(total - warmup, 1)
        done = min(at - warmup, span)
        # (1 + cos(pi x)) / 2 = 1 - sin^2(pi x / 2); sin(pi t) ~ 16 t (1 - t) / (5 - 4 t (1 - t)), t = x / 2
        up, down = done, 2 * span - done
        top, bottom = 16 * up * down, 5 * 4 * span * span - 4 * up * down
        falling = bottom * bottom - top * top
        return floor + (peak - floor) * falling // (bottom * bottom)
    if schedule.curve is Curve.WSD:
        decay = schedule.decay_rounds * steps
        left = min(max(total - at, 0), decay)
        return floor + (peak - floor) * left // decay
    return peak
