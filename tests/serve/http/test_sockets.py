"""Addresses that `clearhead serve` cannot listen on."""

import socket
import sys

import pytest
from support.command import clearhead, refused, started


@pytest.fixture
def used_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one.getsockname()[1]


@pytest.mark.slow
def test_port_in_use_is_a_one_line_error(folders, used_port):
    message = refused("serve", "-m", folders / "bert", "--port", used_port, run=started)
    assert f"127.0.0.1:{used_port}" in message
    assert "address already in use" in message
    assert "--port" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("no-such-host.invalid", "cannot resolve the host name 'no-such-host.invalid'"),
        ("a" * 300, "cannot resolve the host name"),
        ("192.0.2.1", "cannot listen on 192.0.2.1:8080: "),
        ("", "--host is empty"),
    ],
)
def test_foreign_host_is_a_one_line_error(folders, host, expected):
    message = refused("serve", "-m", folders / "bert", "--host", host)
    assert expected in message
    assert "--host" in message


def _without_rights():
    import errno

    def bind(self, address):
        raise PermissionError(errno.EACCES, "Permission denied")

    socket.socket.bind = bind


@pytest.mark.slow
def test_privileged_port_is_a_one_line_error(folders):
    message = refused("serve", "-m", folders / "bert", "--port", 80, hook=_without_rights)
    assert "cannot listen on 127.0.0.1:80: " in message
    assert "--port" in message
    assert "1024" in message


@pytest.mark.parametrize("port", [65536, -1])
def test_port_out_of_range_names_the_option(folders, port):
    status, _, err = clearhead("serve", "-m", folders / "bert", "--port", port)
    assert status == 2
    assert "--port" in err


@pytest.mark.slow
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
