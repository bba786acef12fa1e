"""What the checks share: the protocol, the context built once, and what runs them."""
