"""Limits that clients share."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clearhead.serve.http.client_limits import FairLimit

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.booleans()), max_size=60)


@given(st.integers(1, 40), STEPS)
def test_clients_stay_within_the_limit_and_leave_room(limit, steps):
    shares, acquired = FairLimit(limit), []
    for client, amount, releases in steps:
        mine = sum(size for one, size in acquired if one == client)
        if releases and acquired:
            shares.release(*acquired.pop(0))
        elif shares.acquire(client, amount):
            acquired.append((client, amount))
            assert not mine or not amount or mine + amount <= limit - shares.used
        else:
            assert shares.used + amount > limit or mine + amount > limit - shares.used - amount
        assert shares.used == sum(size for _, size in acquired) <= limit
    for one in acquired:
        shares.release(*one)
    assert shares.used == 0
    assert shares._used_by == Counter()  # disconnected clients leave no entries


@given(st.integers(1, 1000), st.integers(1, 9))
def test_greedy_clients_leave_room_for_a_new_one(limit, clients):
    shares = FairLimit(limit * (clients + 2))
    while sum(shares.acquire(number, 1) for number in range(clients)):
        pass
    assert shares.acquire("new", limit)


@given(st.integers(1, 40), STEPS, st.integers(1, 40), st.data())
def test_smaller_amount_always_has_room(limit, steps, first, data):
    shares = FairLimit(limit)
    first = min(first, limit)
    assert shares.acquire("a", first)
    for client, amount, _ in steps:
        shares.acquire(client, amount)
    before = shares.used
    second = data.draw(st.integers(0, first))
    assert shares.acquire("a", second, replaces=first)
    assert shares.used == before - first + second
