import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.timeline import Phase, Span
from swiftspec.engine.cluster.wire import MAX_BYTES, Bye, Clock, Close, Frame, Join, Message, decode, encode
from swiftspec.engine.model.sampler import Sampler
from swiftspec.engine.process.protocol import Cancel, Committed, Failed, Finished, Generate, Ready, Setup
from swiftspec.policies import POLICIES, Policy, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.policies.sequoia import SequoiaTree

counts = st.integers(0, 2**31 - 1)
tokens = st.lists(counts, max_size=20).map(tuple)
some_tokens = st.lists(counts, min_size=1, max_size=20).map(tuple)
seconds = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(max_size=30)
references = st.builds(ModelRef, model=text, inflate=st.none() | text, dtype=text)
policies: st.SearchStrategy[Policy] = st.sampled_from(
    [*(make_policy(name) for name in POLICIES), SequoiaTree(rank_acceptance=(0.5, 0.25, 0.125))]
)
requests = st.builds(
    Request, prompt=some_tokens, max_new_tokens=st.integers(1, 9999), eos_token_ids=st.frozensets(counts)
)
samplers = st.builds(
    Sampler,
    temperature=st.floats(0, 10),
    top_p=st.floats(0.01, 1),
    top_k=counts,
    seed=st.integers(0, 2**64 - 1),
    acceptance=st.sampled_from(["follow", "residual"]),
)
spans = st.builds(
    Span, st.sampled_from(Role), st.sampled_from(Phase), st.sampled_from(Role), counts, counts, seconds, seconds, counts
)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Setup,
        role=st.sampled_from(Role),
        group=counts,
        rank=counts,
        size=counts,
        tp_group=text,
        models=st.dictionaries(st.sampled_from(Role), references),
        devices=tokens,
        device=st.sampled_from(["cpu", "cuda"]),
        channels=st.lists(text, max_size=3).map(tuple),
        max_context=counts,
        tree_slots=counts,
    ),
    st.builds(
        Generate,
        number=counts,
        policy=policies,
        request=requests,
        sampler=samplers,
        patience_s=seconds,
        alone=st.booleans(),
        fallback=policies,
    ),
    st.builds(Ready, pid=counts, cores=tokens, device=text),
    st.builds(Committed, number=counts, tokens=tokens),
    st.builds(Finished, number=counts, spans=st.lists(spans, max_size=5), losses=counts),
    st.builds(Failed, text, st.booleans()),
    st.builds(Clock, seconds, seconds),
    st.builds(Cancel, counts),
    st.sampled_from([Close(), Join(), Bye()]),
)
frames = st.builds(Frame, st.integers(0, 10**9 - 1), messages)


@given(frames)
def test_what_arrives_is_what_was_sent(frame: Frame) -> None:
    arrived = decode(encode(frame))
    assert arrived == frame
    assert type(arrived.message) is type(frame.message)


@given(st.binary(max_size=200))
def test_random_bytes_are_one_sentence(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$"):
        decode(data)


@given(frames, st.data())
def test_changed_bytes_are_a_message_or_one_sentence(frame: Frame, data: st.DataObject) -> None:
    sent = encode(frame)
    at = data.draw(st.integers(0, len(sent)))
    changed = sent[:at] + data.draw(st.binary(max_size=4)) + sent[at + data.draw(st.integers(0, 5)) :]
    with suppress(ValueError):
        assert isinstance(decode(changed), Frame)


NEST = b"committed 1 " + b'{"number":1,"tokens":' + b"[" * 100_000


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "a message of 0 bytes begins with b''; expected its kind and a worker"),
        (b"pickle 1 {}", "a message of 11 bytes begins with b'pickle 1 {}'"),
        (b"cancel -1 {}", "a message of 12 bytes begins with b'cancel -1 {}'"),
        (b"cancel 1 {", "a message of kind cancel: .*EOF"),
        (b'cancel 1 {"number":1,"also":1}', "a message of kind cancel: also is 1; extra inputs are not permitted"),
        (b'committed 1 {"number":1}', "a message of kind committed: tokens is missing"),
        (b'committed 1 {"number":1,"tokens":["1"]}', r"a message of kind committed: tokens\[0\] is '1'"),
        (b'clock 0 {"asked_s":NaN,"node_s":0}', "a message of kind clock: asked_s is nan"),
        (NEST, "a message of kind committed: .*recursion limit exceeded"),
        (b"committed 1 " + b" " * MAX_BYTES, f"a message of {MAX_BYTES + 12} bytes begins with"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(data: bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        decode(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ('{"name":"os.system","shape":{}}', "policy is 'os.system'; expected one of autoregressive"),
        ('{"name":"serial_chain","shape":{"__class__":1}}', "serial_chain has no field '__class__'"),
        ('{"name":"serial_chain","shape":{"num_draft_tokens":"3"}}', "num_draft_tokens is '3'; expected a whole"),
        ('{"name":["serial_chain"],"shape":{}}', r"policy is \"\['serial_chain'\]\""),
        ('"serial_chain"', "expected a policy's name and shape"),
    ],
)
def test_policies_go_by_name_and_shape_alone(policy: str, sentence: str) -> None:
    known = make_policy("serial_chain")
    generate = Generate(
        number=1,
        policy=known,
        request=Request(prompt=(1,), max_new_tokens=1),
        sampler=Sampler(),
        patience_s=1.0,
        alone=False,
        fallback=make_policy("autoregressive"),
    )
    sent = encode(Frame(1, generate)).decode()
    assert '"policy":{"name":"serial_chain","shape":{"num_draft_tokens":' in sent
    head, _, rest = sent.partition('"policy":')
    with pytest.raises(ValueError, match=sentence):
        decode((head + '"policy":' + policy + rest[rest.index("}}") + 2 :]).encode())


def test_too_much_is_not_sent() -> None:
    with pytest.raises(ValueError, match=f"a message of kind failed has .* bytes; expected {MAX_BYTES} at most"):
        encode(Frame(1, Failed(string.ascii_letters * (MAX_BYTES // 50), is_user_error=False)))
