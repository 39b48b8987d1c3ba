"""Layers: the bits of docs/protocol.md, "Reference class", written once more as plainly as it is there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from assay.training.reference import layers, rows
from assay.training.reference.attention import Attention

F = np.float32


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def product(a, b):
    """Rows times columns, k ascending from zero."""
    c = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        c = c + a[:, k, None] * b[k]
    return c


def row_sum(terms):
    """Of float64: eight lanes, then what is left over."""
    whole, lanes, total = len(terms) // 8 * 8, [0.0] * 8, 0.0
    for i in range(whole):
        lanes[i % 8] += terms[i]
    for lane in lanes:
        total += lane
    for i in range(whole, len(terms)):
        total += terms[i]
    return total


def wide(x):
    return x.astype(np.float64)


@pytest.mark.parametrize("is_centred", [True, False])
@pytest.mark.parametrize("width", [1, 7, 8, 43])
def test_a_norm_and_its_slopes_have_the_bits_of_the_definition(is_centred, width):
    x, w, dy = drawn(1, 5, width), drawn(2, width), drawn(3, 5, width)
    epsilon = 1e-5
    y, dx, dw = np.empty_like(x), np.empty_like(x), np.zeros(width, np.float32)
    for t in range(len(x)):
        m = F(row_sum(wide(x[t])) / width) if is_centred else F(0)
        centred = x[t] - m
        s = F(1 / math.sqrt(row_sum(wide(centred) * wide(centred)) / width + epsilon))
        z, g = centred * s, dy[t] * w
        y[t] = z * w
        mean = F(row_sum(wide(g)) / width) if is_centred else F(0)
        dx[t] = s * ((g - mean) - z * F(row_sum(wide(g) * wide(z)) / width))
        dw += dy[t] * z

    found = layers.statistics(x, is_centred, epsilon, width=width)

    assert np.array_equal(layers.normed(x, found, w), y)
    assert np.array_equal(layers.normed(x, found, w, w), y + w)
    assert np.array_equal(layers.normed_back(dy, x, found, w, is_centred=is_centred), dx)
    assert np.array_equal(layers.normed_back(dy, x, found, w, dy, is_centred=is_centred), dy + dx)
    assert np.array_equal(layers.normed_weight_back(dy, x, found, width=width), dw)
    assert np.array_equal(layers.bias_back(dy), np.add.accumulate(dy)[-1])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head", "length"), [(1, 1, 1, 1), (4, 2, 5, 23), (3, 1, 18, 9)]
)
def test_attention_and_its_slopes_have_the_bits_of_the_definition(heads, kv_heads, head, length):
    attention = Attention(heads, kv_heads, head, length, 0)
    # What rounds inside, by a quarter and an eighth, so that it shows (5.5).
    of_scores, of_slopes = F(1 / 4), F(1 / 8)
    tokens, shared, c = 2 * length, heads // kv_heads, F(1 / math.sqrt(head))
    q, dy = drawn(1, tokens, heads * head), drawn(4, tokens, heads * head)
    k, v = drawn(2, tokens, kv_heads * head), drawn(3, tokens, kv_heads * head)
    y, dq, dk, dv = (np.zeros_like(one) for one in (q, q, k, v))
    noisy_q, noisy_k, noisy_v = (np.zeros_like(one) for one in (q, k, v))
    for first in range(0, tokens, length):
        for h in range(heads):
            at = slice(first, first + length)
            one, kv = np.s_[at, h * head : (h + 1) * head], h // shared
            many = np.s_[at, kv * head : (kv + 1) * head]
            scores, slopes = product(q[one], k[many].T), product(dy[one], v[many].T)
            for i in range(length):
                seen = i + 1
                t = scores[i, :seen] * c
                e = np.array([rows.exp(x) for x in t - t.max()], np.float32)
                p = e * F(1 / row_sum(wide(e)))
                dp = slopes[i, :seen]
                dt = (p * (dp - F(row_sum(wide(p) * wide(dp))))) * c
                y[one][i] = product(p[None], v[many][:seen])[0]
                dq[one][i] = product(dt[None], k[many][:seen])[0]
                dv[many][:seen] += p[:, None] * dy[one][i]
                dk[many][:seen] += dt[:, None] * q[one][i]
                noise = (t + t * of_scores) - t
                dt += dt * noise + ((dp + dp * of_slopes) - dp) * p * c
                p += p * noise
                noisy_q[one][i] = product(dt[None], k[many][:seen])[0]
                noisy_v[many][:seen] += p[:, None] * dy[one][i]
                noisy_k[many][:seen] += dt[:, None] * q[one][i]

    assert np.array_equal(attention.forward(q, k, v), y)
    assert np.array_equal(attention.back(dy, q, k, v), np.concatenate((dq, dk, dv), axis=1))
    assert np.array_equal(attention.forward(np.concatenate((q, k, v), axis=1)), y)
    jitters = (lambda x: x + x * of_scores, lambda x: x + x * of_slopes)
    noisy = np.concatenate((noisy_q, noisy_k, noisy_v), axis=1)
    assert np.array_equal(attention.back(dy, q, k, v, jitters=jitters), noisy)


def test_rotation_turns_pairs_half_a_head_apart_and_back():
    attention = Attention(2, 1, 6, 5, 10_000)
    x = drawn(1, 2, 5, 6)
    angle = np.arange(5)[:, None] * (10_000.0 ** -(np.arange(0, 6, 2) / 6))
    turned = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angle)

    found = attention._turned(x)

    np.testing.assert_allclose(found, np.concatenate((turned.real, turned.imag), axis=2), atol=1e-6)
    np.testing.assert_allclose(attention._turned(found, -1), x, atol=1e-6)


def test_geglu_and_its_slopes_have_the_bits_of_the_definition():
    x, up, dy = drawn(1, 6, 21) * F(4), drawn(2, 6, 21), drawn(3, 6, 21)
    a, b = F(2 * math.sqrt(2 / math.pi)), F(2 * math.sqrt(2 / math.pi) * 0.044715)
    e = np.array([rows.exp(one) for one in (x * (a + (x * x) * b)).reshape(-1)], np.float32).reshape(x.shape)
    t = F(1) - F(2) / (F(1) + e)
    half = x * F(0.5)
    inner = F(math.sqrt(2 / math.pi)) + (x * x) * F(3 * math.sqrt(2 / math.pi) * 0.044715)
    along = F(0.5) * (F(1) + t) + (half * (F(1) - t * t)) * inner

    found = layers.gelu_tanh(x)

    assert np.array_equal(found, t)
    true = np.tanh(math.sqrt(2 / math.pi) * (wide(x) + 0.044715 * wide(x) ** 3))
    assert np.abs(found - true).max() < 2.0**-22
    assert np.array_equal(layers.geglu(x, up, found), (half * (F(1) + t)) * up)
    slopes = np.stack(((dy * up) * along, dy * (half * (F(1) + t))))
    assert np.array_equal(layers.geglu_back(dy, x, up, found), slopes)
    far = np.array([[-1e10, -100, 100, 1e10]], np.float32)
    assert layers.gelu_tanh(far).tolist() == [[-1, -1, 1, 1]]


@pytest.mark.parametrize("width", [1, 5])
def test_a_norm_of_heads_is_that_of_each_heads_part_of_a_row(width):
    x, w, wider = drawn(1, 4, 3 * width), drawn(2, width), drawn(3, 4, 3 * width + 2)
    dy = wider[:, 2:]  # as the slopes of keys lie beside those of queries
    parts = x.reshape(-1, width)
    found = layers.statistics(x, False, 1e-5, width=width)
    alone = layers.statistics(parts, False, 1e-5, width=width)

    y, dx = layers.normed(x, found, w), layers.normed_back(dy, x, found, w, is_centred=False)
    dw = layers.normed_weight_back(dy, x, found, width=width)

    assert y.shape == dx.shape == x.shape
    assert np.array_equal(y.reshape(-1, width), layers.normed(parts, alone, w))
    rest = np.ascontiguousarray(dy).reshape(-1, width)
    assert np.array_equal(dx.reshape(-1, width), layers.normed_back(rest, parts, alone, w, is_centred=False))
    assert np.array_equal(dw, layers.normed_weight_back(rest, parts, alone, width=width))


def test_a_bias_is_added_to_every_row_and_a_gain_is_1_more_than_its_weight():
    x, b = drawn(1, 5, 7), drawn(2, 7)

    assert np.array_equal(layers.biased(x, b), x + b)
    assert np.array_equal(layers.bias_back(x[:, 2:5]), np.add.accumulate(x)[-1, 2:5])
    assert np.array_equal(layers.gain(b), F(1) + b)
    with pytest.raises(ValueError, match=r"shape \(6,\), expected \(7,\)"):
        layers.biased(x, b[:6])


def test_the_loss_and_its_slope_have_the_bits_of_the_definition():
    logits, targets = drawn(1, 6, 21) * F(5), np.array([0, 20, 3, 3, 7, 11])
    slope, total, share = np.empty_like(logits), 0.0, F(1 / 6)
    for t, target in enumerate(targets):
        e = np.array([rows.exp(x) for x in logits[t] - logits[t].max()], np.float32)
        z = row_sum(wide(e))
        total += math.log(z) + (float(logits[t].max()) - float(logits[t, target]))
        p = e * F(1 / z)
        p[target] -= F(1)
        slope[t] = share * p

    found = layers.partition(logits)

    assert layers.cross_entropy(logits, found, targets)[0] == pytest.approx(total, rel=1e-14)
    assert np.array_equal(layers.cross_entropy_back(logits, found, targets, count=6), slope)


def test_the_loss_of_several_pairs_and_its_slope_are_those_of_the_definition():
    logits, targets, reference = drawn(1, 12, 21) * F(5), np.arange(12) % 7, np.arange(20.0, 26.0)
    p = np.exp(wide(logits)) / np.exp(wide(logits)).sum(axis=1, keepdims=True)
    gained = reference + np.log(p[np.arange(12), targets]).reshape(6, 2).sum(axis=1)
    margin = 0.1 * (gained[[0, 2, 4]] - gained[[1, 3, 5]])
    p[np.arange(12), targets] -= 1
    wrong = np.repeat(0.1 / (1 + np.exp(margin)) / 3, 4) * np.tile([1, 1, -1, -1], 3)

    found = layers.partition(logits)

    total = np.log(1 + np.exp(-margin)).sum()
    assert layers.dpo(logits, found, targets, reference, beta=0.1)[0] == pytest.approx(total, rel=1e-9)
    slope = layers.dpo_back(logits, found, targets, reference, beta=0.1, pairs=3)
    np.testing.assert_allclose(slope, wrong[:, None] * p, rtol=1e-4, atol=1e-9)


def test_rows_of_tables_are_added_token_by_token_and_sequence_by_sequence():
    slope, tokens, start = drawn(1, 30, 4), np.arange(30) ** 2 % 7, drawn(2, 7, 4)
    table, place = start.copy(), np.zeros((10, 4), np.float32)
    for t in range(30):
        table[tokens[t]] += slope[t]
        place[t % 10] += slope[t]

    assert np.array_equal(layers.embedded_back(slope, tokens, start), table)
    assert np.array_equal(layers.placed_back(slope, 10), place)


def test_tables_in_the_place_of_vectors_are_refused_before_they_are_spread_out():
    long, logits = np.zeros((9, 1), np.int64), drawn(1, 9, 1)
    with pytest.raises(ValueError, match=r"shape \(9, 1\), expected \(9,\)"):
        layers.cross_entropy(logits, layers.partition(logits), long)
    with pytest.raises(ValueError, match=r"shape \(9, 1\), expected \(9,\)"):
        layers.embedded(long, drawn(2, 3, 4))
