"""Requirements for a compiled product to stream its weights, checked in the same way for each."""

from tools.compiling import MAX_SHARED_BYTES, Compiled


def check_streaming(compiled: Compiled, *, first_loads: int) -> None:
    """Two programs fit a multiprocessor, copies are asynchronous, and weights do not wait for the predecessor.

    first_loads: 16-byte loads, at least, that are asked for before the predecessor is waited for.
    """
    assert compiled.stack_bytes == 0
    assert 2 * compiled.shared_bytes <= MAX_SHARED_BYTES
    assert compiled.count(r"cp\.async\.cg\.shared\.global \[.*0x10") >= 24
    assert compiled.count(r"griddepcontrol\.wait") == 1
    before, _ = compiled.ptx.split("griddepcontrol.wait")
    assert before.count("ld.global.v4") >= first_loads
    # Nobody waits for them until the pipeline is full.
    assert "st.shared" not in compiled.ptx.split("cp.async.wait_group")[0]
