"""Limits that clients share."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from clearhead.serve.http.client_limits import FairLimit, FairQueue

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


def take_one(queue):
    """Take the first item and return it."""
    first = next(queue.in_order())
    queue.remove([first])
    return first.item


def test_requests_of_one_client_do_not_delay_another():
    queue = FairQueue()
    for number in range(50):
        queue.add("greedy", [((number, 10), 10)])
    assert take_one(queue) == (0, 10)
    queue.add("polite", [(("polite", 10), 10)])
    assert "polite" in [take_one(queue)[0] for _ in range(2)]


def test_large_request_does_not_delay_later_ones_of_its_client():
    queue = FairQueue()
    queue.add("one", [((number, 10), 10) for number in range(50)])
    assert take_one(queue) == (0, 10)
    queue.add("one", [(("small", 1), 1)])
    assert "small" in [take_one(queue)[0] for _ in range(2)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(1, 9), max_size=5)), max_size=20))
def test_waiting_clients_get_equal_shares(requests):
    queue, waiting = FairQueue(), Counter()
    for number, (client, costs) in enumerate(requests):
        queue.add(client, [((client, cost, number), cost) for cost in costs])
        waiting[client] += sum(costs)
    served, order = Counter(), []
    while queue:
        order.append(take_one(queue))
        served[order[-1][0]] += order[-1][1]
        shares = [served[client] for client in waiting if served[client] < waiting[client]]
        assert not shares or max(shares) - min(shares) <= 9  # the largest cost
    assert served == +waiting
    assert not queue._lanes  # disconnected clients leave no entries
    for number in range(len(requests)):
        mine = [item for item in order if item[2] == number]
        assert [cost for _, cost, _ in mine] == requests[number][1]
