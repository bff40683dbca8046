"""Test cases in which version 1 of gandiva_fair breaks a promise. Every later version must keep the promise in that
case."""

from __future__ import annotations

from fairshare.check.economy import Account, Economy, Job, economy

A, J, S = Account, Job, economy
FAST = {0: 1.0, 1: 4.0}

# The name of each case begins with the name of the promise that version 1 breaks.
CASES: dict[str, Economy] = {
    "1 two teams, one with two gangs of a node": S(
        [(0, 4)] * 2, [A(), A()], [J(0, gpus=4), J(0, gpus=4), J(1)], trading=False, rounds=100
    ),
    "1 two teams on eight nodes": S(
        [(0, 8)] * 8, [A(), A()], [*[J(0, gpus=8)] * 9, J(1)], trading=False, rounds=60
    ),
    "1 in a tree": S(
        [(0, 4)] * 2,
        [A(), A(), A(parent=0), A(parent=0), A(parent=1)],
        [J(2, gpus=4), J(3, gpus=4), J(4)],
        trading=False,
        rounds=60,
    ),
    "1 below an account whose other user used up what it saved": S(
        [(0, 8), (1, 8), (1, 8), (2, 8), (2, 8)],
        [
            A(),
            A(tickets=4.0),
            A(tickets=4.0, parent=0),
            A(tickets=8.0, parent=0),
            A(tickets=4.0, parent=1),
            A(parent=2),
            A(parent=3),
            A(parent=1),
            A(parent=4),
        ],
        [
            J(5),
            J(5, workers=2),
            J(5),
            J(5, workers=2),
            J(6, workers=4, gpus=4),
            J(6, gpus=4),
            *[J(7, workers=2)] * 2,
            J(7, workers=3, gpus=2),
            J(7, workers=2),
            *[J(8, gpus=7)] * 4,
            J(8, workers=2),
        ],
        trading=False,
        rounds=10,
    ),
    "1 a small gang where a large one begins that is as fast elsewhere": S(
        [(0, 4), (0, 4), (1, 4)],
        [A(tickets=3.5), A(tickets=4.0), A(tickets=2.0)],
        [
            J(0, rate={0: 1.0, 1: 0.948}),
            J(0, gpus=4, rate={0: 1.0, 1: 1.952}),
            J(0, gpus=4),
            J(0),
            J(1, accepts=(0,)),
            J(1, gpus=2, accepts=(0,)),
            J(1, gpus=4),
            J(1),
            J(2, accepts=(0,)),
            J(2, gpus=2, rate={0: 1.0, 1: 1.198}),
        ],
        trading=False,
        rounds=20,
    ),
    "2 a limit of one GPU over two generations": S(
        [(0, 1), (1, 1)],
        [A(cap_total=1), A()],
        [J(0, priority=10), J(0), J(1), J(1)],
        trading=False,
        rounds=60,
    ),
    "2 a job whose GPUs become free after its turn": S(
        [(0, 4), (0, 4), (1, 4), (2, 4)],
        [A(100), A(3.5), A(), A(8), A(4)],
        [
            J(0, rate={0: 1.0, 1: 1.508, 2: 2.274}),
            J(0, rate={0: 1.0, 1: 0.969, 2: 0.94}),
            J(0, gpus=2, rate={0: 1.0, 1: 1.888, 2: 3.566}),
            J(1),
            J(1, rate={0: 1.0, 1: 1.069, 2: 1.143}),
            J(2, gpus=4, rate={0: 1.0, 1: 1.313, 2: 1.723}),
            J(3, gpus=4),
            J(3, accepts=(0, 1, 2)),
            J(3, gpus=2, accepts=(0,), rate={0: 1.0, 1: 1.859, 2: 3.457}),
            J(4, rate={0: 1.0, 1: 1.438, 2: 2.068}),
            J(4, accepts=(2,), rate={0: 1.0, 1: 0.788, 2: 0.621}),
            J(4, accepts=(0, 2), rate={0: 1.0, 1: 1.136, 2: 1.29}),
            J(4, rate={0: 1.0, 1: 2.288, 2: 5.234}),
        ],
        trading=False,
        rounds=22,
    ),
    "2 a gang of several workers that ran": S(
        [(0, 4), (0, 4), (1, 4), (1, 8), (2, 4), (3, 4), (3, 4)],
        [A(4), A(8), A(8), A(3.5)],
        [
            J(0),
            J(0, workers=2, gpus=2, rate={0: 1.0, 1: 2.643, 2: 6.987, 3: 18.468}),
            J(1, accepts=(0,)),
            J(1, gpus=2, rate={0: 1.0, 1: 1.089, 2: 1.185, 3: 1.29}),
            J(1, workers=3, rate={0: 1.0, 1: 2.618, 2: 6.853, 3: 17.94}),
            J(1, workers=3, rate={0: 1.0, 1: 1.474, 2: 2.172, 3: 3.202}),
            J(1, workers=2, accepts=(1, 2), rate={0: 1.0, 1: 3.187, 2: 10.155, 3: 32.362}),
            J(1, gpus=3, rate={0: 1.0, 1: 0.733, 2: 0.538, 3: 0.394}),
            J(2, workers=2, accepts=(0, 1), rate={0: 1.0, 1: 1.39, 2: 1.932, 3: 2.685}),
            J(2, gpus=5, rate={0: 1.0, 1: 1.797, 2: 3.228, 3: 5.8}),
            J(2, gpus=3, rate={0: 1.0, 1: 0.814, 2: 0.662, 3: 0.539}),
            J(2, gpus=3, rate={0: 1.0, 1: 1.187, 2: 1.409, 3: 1.673}),
            J(3, workers=3, rate={0: 1.0, 1: 3.556, 2: 12.643, 3: 44.956}),
            J(3, workers=2, rate={0: 1.0, 1: 1.439, 2: 2.071, 3: 2.981}),
            J(3, workers=2, gpus=2, rate={0: 1.0, 1: 1.828, 2: 3.341, 3: 6.106}),
            J(3, workers=2, rate={0: 1.0, 1: 1.828, 2: 3.341, 3: 6.108}),
        ],
        trading=False,
        rounds=3,
    ),
    "2 a job in whose place two begin that changed places": S(
        [(0, 8), (1, 8), (1, 8)],
        [*[A()] * 3, A(tickets=4.0)],
        [
            J(0),
            *[J(0, gpus=2, accepts=(0,))] * 2,
            J(0),
            J(0, rate={0: 1.0, 1: 2.567}),
            J(1, gpus=4, rate={0: 1.0, 1: 1.564}),
            J(1, gpus=2, rate={0: 1.0, 1: 3.412}),
            J(1, accepts=(0, 1), rate={0: 1.0, 1: 0.879}),
            J(2, gpus=2, rate={0: 1.0, 1: 1.016}),
            J(2, gpus=4, rate={0: 1.0, 1: 0.565}),
            J(2, accepts=(0, 1), rate={0: 1.0, 1: 1.3}),
            J(3, gpus=2, accepts=(1,), rate={0: 1.0, 1: 1.544}),
            J(3, accepts=(0, 1), rate={0: 1.0, 1: 0.793}),
            J(3, rate={0: 1.0, 1: 1.601}),
            J(3, gpus=4, rate={0: 1.0, 1: 2.297}),
            J(3, gpus=2, rate={0: 1.0, 1: 1.121}),
            J(3, rate={0: 1.0, 1: 1.713}),
            J(3, gpus=2, rate={0: 1.0, 1: 0.702}),
            J(3, accepts=(1,), rate={0: 1.0, 1: 0.773}),
            J(3, rate={0: 1.0, 1: 2.141}),
        ],
        trading=False,
        switch_cost=2.0,
        rounds=65,
    ),
    "3 three gangs on two generations": S(
        [(0, 8), (1, 8)], [A(), A(), A()], [J(0, gpus=4), J(1, gpus=4), J(2, gpus=4)], trading=False, rounds=60
    ),
    "3 a gang that fits once two others have moved, one for the other": S(
        [(0, 8), (0, 8), (1, 16), (1, 16), (1, 16), (2, 2), (2, 2), (2, 2), (2, 2)],
        [*[A()] * 3, A(evenly=True), A(tickets=8.0, parent=0), A(parent=0)],
        [
            J(1, workers=5, accepts=(1, 2), priority=2),
            J(1, gpus=3, priority=2),
            J(2, workers=2, accepts=(1,), priority=2),
            J(2, gpus=2, accepts=(0, 2)),
            J(2, workers=5),
            J(3, workers=2, accepts=(2,), priority=1),
            J(3, gpus=5, accepts=(0, 1, 2), priority=2, goes=5),
            J(4, workers=2, gpus=8, priority=2),
            J(4, gpus=7, accepts=(0, 1), priority=1, comes=1),
            J(5, workers=3, accepts=(1,), priority=2, comes=1),
            J(5, workers=5, accepts=(2,), comes=2),
        ],
        trading=False,
        rounds=4,
    ),
    "4 the fast generation, hundred tickets to one": S(
        [(0, 8), (1, 8)],
        [A(100), A(1)],
        [J(0, gpus=8, rate=FAST), J(1, gpus=8, accepts=(1,), rate={1: 1.0})],
        trading=False,
        rounds=200,
    ),
    "5 one job that may go anywhere, one that may not": S(
        [(0, 1), (1, 1)], [A(), A()], [J(0), J(1, accepts=(1,))], trading=False, rounds=4
    ),
    "5 nine GPUs and one": S(
        [(0, 9), (1, 1)], [A(), A()], [J(0, workers=10), *[J(0)] * 10, J(1, accepts=(1,))], trading=False, rounds=4
    ),
    "4 a gang of the fast generation and one GPU of it": S(
        [(0, 8), (1, 8), (2, 4)],
        [A(), A()],
        [J(0, rate={0: 1.0, 1: 1.887, 2: 3.559}), J(1, gpus=4, rate={0: 1.0, 1: 2.495, 2: 6.227})],
        trading=False,
    ),
    "4 gangs of four among single GPUs": S(
        [(0, 8), (0, 4), (1, 8)],
        [A(2), A(2), A()],
        [
            J(0, gpus=4, rate={0: 1.0, 1: 2.4}),
            *[J(0, rate={0: 1.0, 1: 1.1})] * 4,
            J(1, gpus=2, rate={0: 1.0, 1: 0.6}),
            J(1, gpus=4, rate={0: 1.0, 1: 2.5}),
            J(1, rate={0: 1.0, 1: 2.2}),
            *[J(2, rate={0: 1.0, 1: 2.0})] * 8,
        ],
        trading=False,
        rounds=100,
    ),
    "4 own jobs of different speed": S(
        [(0, 4), (1, 4)],
        [A()],
        [*[J(0, rate={0: 1.0, 1: 1.0})] * 4, *[J(0, rate={0: 1.0, 1: 9.0})] * 4],
        trading=False,
        rounds=60,
    ),
    "6 an account with few tickets comes late": S(
        [(0, 8), (1, 8)],
        [A(8), A(1)],
        [*[J(0)] * 16, *[J(1, gpus=2, comes=29)] * 2],
        trading=False,
        rounds=60,
    ),
    "6 odd gangs": S(
        [(0, 8), (0, 8), (1, 8)],
        [A(), A()],
        [*[J(0)] * 2, *[J(0, workers=5)] * 2, J(1, gpus=5), J(1, gpus=4), J(1, gpus=5)],
        trading=False,
        rounds=40,
    ),
    "7 a gang of the whole cluster and a minimum hold": S(
        [(0, 8)] * 8,
        [A() for _ in range(8)],
        [*[J(t) for t in range(7) for _ in range(64)], J(7, workers=8, gpus=8)],
        trading=False,
        min_hold=120.0,
        rounds=120,
    ),
    "8b threes and fives on a node of eight": S(
        [(0, 8)], [A()], [*[J(0, gpus=3)] * 2, *[J(0, gpus=5)] * 2], trading=False, rounds=20
    ),
    "8b threes, a five, and threes of somebody else": S(
        [(0, 8)], [A(), A(2)], [J(0, gpus=3), J(0, gpus=5), J(1, gpus=3)], trading=False, rounds=1
    ),
    "8b twos and a four on nodes of four": S(
        [(0, 4), (0, 4)], [A(), A()], [J(0, gpus=2), J(0, gpus=4), J(1, gpus=4)], trading=False, rounds=4
    ),
    "9b two gangs of the whole cluster": S(
        [(0, 8)], [A(evenly=True)], [*[J(0, gpus=8)] * 2], trading=False, rounds=40
    ),
    "10 teams whose own jobs differ in speed": S(
        [(0, 4), (1, 4)],
        [A(trades=True), A(trades=True)],
        [
            *[J(0, rate={0: 1.0, 1: 1.0})] * 4,
            *[J(0, rate={0: 1.0, 1: 9.0})] * 4,
            *[J(1, rate={0: 1.0, 1: 2.0})] * 8,
        ],
        rounds=100,
    ),
    "14 two gangs of five beside two of four": S(
        [(0, 8), (1, 4), (2, 8)],
        [A(), A()],
        [*[J(0, workers=5)] * 2, *[J(1, workers=2, gpus=2)] * 2],
        trading=False,
        rounds=1,
    ),
    "13 a service where a gang wants its node": S(
        [(0, 8), (0, 8), (1, 3), (2, 16), (3, 8)],
        [A(), A()],
        [J(0), J(0, workers=4, gpus=4), J(1, keeps=True)],
        trading=False,
        rounds=20,
    ),
    "13 a service where faster GPUs become free": S(
        [(0, 1), (1, 1)],
        [A()],
        [J(0, rate={0: 1.0, 1: 9.0}, goes=3), J(0, rate={0: 1.0, 1: 9.0}, comes=1, keeps=True)],
        trading=False,
        rounds=6,
    ),
}  # fmt: skip

# Economies in which version 1 keeps the promise, but a later version once broke it.
KEPT_BY_VERSION_1: dict[str, Economy] = {
    "8b a hole beside a gang that begins, once another went to faster GPUs": S(
        [(0, 4), (1, 8)],
        [*[A()] * 3],
        [
            J(0, rate={0: 1.0, 1: 2.031}),
            J(0, rate={0: 1.0, 1: 2.238}),
            J(0, rate={0: 1.0, 1: 1.545}),
            J(0, rate={0: 1.0, 1: 1.053}),
            J(0),
            J(0, rate={0: 1.0, 1: 1.111}),
            J(1, rate={0: 1.0, 1: 1.474}),
            J(1, gpus=4, rate={0: 1.0, 1: 1.131}),
            J(1),
            J(1, gpus=2),
            J(2, rate={0: 1.0, 1: 0.775}),
            J(2, rate={0: 1.0, 1: 1.136}),
            J(2, rate={0: 1.0, 1: 0.703}),
        ],
        trading=False,
        switch_cost=2.0,
        rounds=60,
    ),
}
