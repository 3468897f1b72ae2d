"""Messages between draft and target: token ids over ZeroMQ, their order, and the keys that protect them."""
