"""Candidates of benchmark tests, in a module that their processes can import."""


def doubling(offset):
    return lambda items: [2 * item + offset for item in items]


def broken():
    raise OSError("no such model")


def breaking(last):
    def work(items):
        if items[0] == last:
            raise ValueError("too much")
        return items

    return work


def dying():
    import os

    return lambda items: os._exit(1)


def hungry(mebibytes):
    def work(items):
        return len(bytearray(mebibytes * 2**20))

    return work
