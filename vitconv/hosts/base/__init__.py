"""What the hosts share: the protocol, taps, and reading facts off a live network."""
