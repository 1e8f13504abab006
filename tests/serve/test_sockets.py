"""Addresses that `clearhead serve` cannot listen on."""

import socket
import sys

import pytest
from support.command import clearhead, refused, started


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one.getsockname()[1]


def test_port_in_use_is_a_one_line_error(folders, taken):
    said = refused("serve", "-m", folders / "bert", "--port", taken, run=started)
    assert f"127.0.0.1:{taken}" in said
    assert "address already in use" in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("no-such-host.invalid", "cannot resolve the host name 'no-such-host.invalid'"),
        ("a" * 300, "cannot resolve the host name"),
        ("192.0.2.1", "cannot listen on 192.0.2.1:8080: "),
    ],
)
def test_foreign_host_is_a_one_line_error(folders, host, expected):
    said = refused("serve", "-m", folders / "bert", "--host", host)
    assert expected in said
    assert "--host" in said


def _without_rights():
    import errno

    def bind(self, address):
        raise PermissionError(errno.EACCES, "Permission denied")

    socket.socket.bind = bind


def test_privileged_port_is_a_one_line_error(folders):
    said = refused("serve", "-m", folders / "bert", "--port", 80, hook=_without_rights)
    assert "cannot listen on 127.0.0.1:80: " in said
    assert "--port" in said
    assert "1024" in said


@pytest.mark.parametrize("port", [65536, -1])
def test_port_out_of_range_names_the_option(folders, port):
    status, _, err = clearhead("serve", "-m", folders / "bert", "--port", port)
    assert status == 2
    assert "--port" in err


def test_ipv6_address_in_use_is_in_brackets(folders):
    if not socket.has_ipv6 or sys.platform == "win32":
        pytest.skip("no IPv6")
    try:
        one = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with one:
        port = one.getsockname()[1]
        assert f"[::1]:{port}: " in refused("serve", "-m", folders / "bert", "--host", "::1", "--port", port)
