"""Public: whether an IP address that a stranger named is on the internet, not in the reader's own network.

Room: network (pure).
"""

from __future__ import annotations

from ipaddress import IPv6Address, IPv6Network, ip_address

# All else, such as NAT64 and mapped addresses, may lead to a private one, as 6to4 does.
_UNICAST = IPv6Network("2000::/3")


def is_public(text: str) -> bool:
    """Whether an IP address is a public unicast one, and no way to another address."""
    address = ip_address(text)
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, IPv6Address):
        return address in _UNICAST and address.sixtofour is None
    return True
