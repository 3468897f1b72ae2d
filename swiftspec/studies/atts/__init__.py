"""Asynchronous test-time scaling (ATTS): many samples of a question on a draft's server, some taken over by a target's.

A workload over two servers, see docs/studies.md. `samples`, `selection` and `conformal` are its rules, without I/O;
`driver` performs them on real servers, `simulation` in simulated time.
"""
