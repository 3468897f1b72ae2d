"""Cost model: measured latencies of operations, the operations of a forward, and profiles composed of both."""
