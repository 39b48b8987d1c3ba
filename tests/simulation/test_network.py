"""The simulated network loses, repeats, delays and cuts as told, and the same seed does it again."""

from __future__ import annotations

from tests.simulation.network import Alarm, Delivery, Network, Weather


def a_network(**weather):
    return Network(seed=1, hosts=(0, 1, 2), weather=Weather(**weather))


def everything(network):
    found = []
    while (event := network.next()) is not None:
        found.append((network.now_ms, event))
    return found


def test_a_message_arrives_once_within_its_delay():
    network = a_network(delay_ms=(3, 9))
    network.send(0, 1, b"x")
    ((when, event),) = everything(network)
    assert 3 <= when <= 9 and event == Delivery(0, 1, b"x")


def test_drop_and_duplicate_are_rates():
    network = a_network(drop=0.25, duplicate=0.5)
    for _ in range(1_000):
        network.send(0, 1, b"x")
    assert 1_000 < len(everything(network)) < 1_250  # 1000 * 1.5 * 0.75


def test_messages_overtake_each_other():
    network = a_network(delay_ms=(1, 100))
    for number in range(50):
        network.send(0, 1, bytes([number]))
    order = [event.payload[0] for _, event in everything(network)]
    assert order != sorted(order) and sorted(order) == list(range(50))


def test_a_slow_link_is_slow_one_way():
    network = Network(seed=1, hosts=(0, 1), links={(0, 1): Weather(delay_ms=(500, 500))})
    network.send(0, 1, b"there")
    network.send(1, 0, b"back")
    assert [event.payload for _, event in everything(network)] == [b"back", b"there"]


def test_a_partition_cuts_both_ways_until_it_heals_and_spares_third_parties():
    network = a_network(delay_ms=(10, 10))
    network.partition({0}, {1}, heal_ms=100)
    for source, target in ((0, 1), (1, 0), (1, 2)):
        network.send(source, target, b"x")
    network.wake(None, "healed", 95)
    assert [event for _, event in everything(network)] == [Delivery(1, 2, b"x"), Alarm(None, "healed")]
    network.send(0, 1, b"y")
    assert [event for _, event in everything(network)] == [Delivery(0, 1, b"y")]


def test_a_crash_loses_alarms_and_what_was_on_the_way():
    network = a_network(delay_ms=(10, 10))
    network.send(0, 1, b"x")
    network.wake(1, "tick", 10)
    network.crash(1)
    network.restart(1)
    network.wake(1, "tock", 10)
    assert [event for _, event in everything(network)] == [Alarm(1, "tock")]


def test_the_same_seed_gives_the_same_trace_and_another_seed_does_not():
    traces = []
    for seed in (5, 5, 6):
        network = Network(seed=seed, hosts=(0, 1), weather=Weather(drop=0.3, duplicate=0.3))
        for number in range(20):
            network.send(0, 1, bytes([number]))
        everything(network)
        traces.append(network.trace)
    assert traces[0] == traces[1] != traces[2]
