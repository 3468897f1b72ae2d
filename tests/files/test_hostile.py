"""Whatever a file holds, its reader accepts it or refuses it in one sentence that names it, with little memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.costmodel.op_tables import OpTables
from tests.acceptance.test_server_logs import ANSWER
from tests.artifacts.test_report import MEASURED, PREDICTED, policy_report, report
from tests.builders import machine_profile
from tests.cli import samples
from tests.cli.tokenizer_files import write_byte_tokenizer
from tests.engine.checkpoints import write_checkpoint
from tests.files import hostile
from tests.files.readers import Outcome, attempt
from tests.workload.samples import workload

pytestmark = pytest.mark.extra("engine")

ROOT = Path(__file__).parents[2]
NAMES = {
    "trace": "f.npz",
    "op tables": "f.npz",
    "config": "config.json",
    "planned config": "config.json",
    "adapter": "adapter_config.json",
    "tokenizer": "tokenizer.json",
    "vocabulary": "tokenizer.json",
}
# A profile is read as a plan is.
JSON_READERS = ("plan", "config", "planned config", "adapter", "prompts", "tokenizer", "vocabulary", "counts")

Attempt = Callable[[str, Path], Outcome]


@pytest.fixture(scope="module")
def attempt_elsewhere() -> Iterator[Attempt]:
    """Readers in a process with all imports done, each attempt in a child with 300 MB."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.files.readers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    sending, answers = process.stdin, process.stdout

    def ask(reader: str, path: Path) -> Outcome:
        sending.write(json.dumps([reader, str(path)]) + "\n")
        sending.flush()
        return Outcome(*json.loads(answers.readline()))

    yield ask
    sending.close()
    assert process.wait(timeout=60) == 0
    answers.close()


def check_refused(outcome: Outcome, path: Path) -> None:
    assert outcome.kind == "refused", outcome
    check_sentence(outcome, path)


def check_sentence(outcome: Outcome, path: Path) -> None:
    """One line, which is short, and names the file or the directory that it is in."""
    assert outcome.kind in ("accepted", "refused"), outcome
    if outcome.kind == "refused":
        said = outcome.text
        assert str(path.parent) in said
        assert len(said) < len(str(path)) * 2 + 400, said
        assert "Traceback" not in said


def cases(*corpora: Mapping[str, hostile.Make]) -> list[Any]:
    return [pytest.param(make, id=name) for corpus in corpora for name, make in corpus.items()]


@pytest.mark.parametrize("make", cases(hostile.PLACES))
@pytest.mark.parametrize("reader", ["plan", "trace", "prompts", "config", "tokenizer", "vocabulary", "csv", "counts"])
def test_what_is_no_file_or_far_too_large(
    attempt_elsewhere: Attempt, tmp_path: Path, reader: str, make: hostile.Make
) -> None:
    path = tmp_path / NAMES.get(reader, "file")
    make(path)
    outcome = attempt_elsewhere(reader, path)
    check_refused(outcome, path)


@pytest.mark.parametrize("make", cases(hostile.JSON))
def test_json_that_is_none_or_too_much(attempt_elsewhere: Attempt, tmp_path: Path, make: hostile.Make) -> None:
    for reader in JSON_READERS:
        folder = tmp_path / reader
        folder.mkdir()
        path = folder / NAMES.get(reader, "file")
        make(path)
        check_refused(attempt_elsewhere(reader, path), path)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A valid file for every reader."""
    folder = tmp_path_factory.mktemp("valid")
    samples.plan().save(folder / "plan.json")
    whole = machine_profile()
    whole.model_copy(update={"steps": whole.steps[:4], "host": whole.host[:2]}).save(folder / "profile.json")
    report(policy_report(PREDICTED, MEASURED)).save(folder / "report.json")
    workload().save(folder / "workload.json")
    samples.trace().save(folder / "trace.npz")
    _op_tables().save(folder / "ops.npz")
    (folder / "prompts.jsonl").write_text('{"id": "a", "prompt": "x"}\n{"turns": ["y"]}\n')
    (folder / "table.csv").write_text(f"{hostile.CSV_HEADER}x,3,0.5\n")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none"}')
    (folder / "answers.jsonl").write_text(json.dumps(ANSWER))
    (folder / "planned").mkdir()
    (folder / "planned" / "config.json").write_text(json.dumps(hostile.MIXTURE))
    write_checkpoint(folder / "model", "llama-tied")
    write_byte_tokenizer(folder / "model")
    return {
        "plan": folder / "plan.json",
        "profile": folder / "profile.json",
        "report": folder / "report.json",
        "trace": folder / "trace.npz",
        "workload": folder / "workload.json",
        "op tables": folder / "ops.npz",
        "prompts": folder / "prompts.jsonl",
        "csv": folder / "table.csv",
        "config": folder / "model" / "config.json",
        "planned config": folder / "planned" / "config.json",
        "adapter": folder / "adapter_config.json",
        "header": folder / "model" / "model.safetensors",
        "tokenizer": folder / "model" / "tokenizer.json",
        "vocabulary": folder / "model" / "tokenizer.json",
        "counts": folder / "answers.jsonl",
        "weights": folder / "model" / "model.safetensors",
    }


def _op_tables() -> OpTables:
    columns = {
        "gemm": {"framework": "vllm", "dtype": "bf16", "rows": 1, "n": 8, "k": 8},
        "attention": {
            "framework": "vllm",
            "kv_dtype": "bf16",
            "head_dim": 8,
            "sequences": 1,
            "context": 2,
            "heads": 1,
            "kv_heads": 1,
        },
        "collective": {"op": "all_reduce", "implementation": "nccl", "devices": 2, "num_bytes": 4},
        "quantisation": {"framework": "vllm", "scale": "given", "rows": 1, "k": 8},
    }
    tables = {
        name: {column: np.array([value]) for column, value in row.items()} | {"latency_s": np.array([1e-6])}
        for name, row in columns.items()
    }
    return OpTables(
        origin=samples.ORIGIN, device="h200-sxm", sources=(), licence="none", attribution="none", tables=tables
    )


def test_valid_files_are_accepted(valid: Mapping[str, Path], attempt_elsewhere: Attempt) -> None:
    assert {reader: attempt_elsewhere(reader, path).kind for reader, path in valid.items()} == dict.fromkeys(
        valid, "accepted"
    )


@pytest.mark.parametrize("reader", ["plan", "report", "profile", "workload"])
def test_a_document_with_one_thing_wrong(
    valid: Mapping[str, Path], attempt_elsewhere: Attempt, tmp_path: Path, reader: str
) -> None:
    document = json.loads(valid[reader].read_text())
    path = tmp_path / "file.json"
    for name, make in hostile.altered(document):
        make(path)
        outcome = (attempt_elsewhere if name.startswith("many") else attempt)(reader, path)
        check_sentence(outcome, path)
        if name.startswith(("long number", "infinite", "NaN", "deep", "half")):
            assert outcome.kind == "refused", name


@pytest.mark.parametrize("make", cases(hostile.ARCHIVES))
@pytest.mark.parametrize("reader", ["trace", "op tables"])
def test_archives(attempt_elsewhere: Attempt, tmp_path: Path, reader: str, make: hostile.Make) -> None:
    make(path := tmp_path / "f.npz")
    check_refused(attempt_elsewhere(reader, path), path)


@pytest.fixture
def model(valid: Mapping[str, Path], tmp_path: Path) -> Path:
    """A model's directory that a test may damage."""
    for path in valid["config"].parent.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


@pytest.mark.parametrize("make", cases(hostile.SAFETENSORS, hostile.PLACES))
def test_weights(attempt_elsewhere: Attempt, model: Path, make: hostile.Make) -> None:
    path = model / "model.safetensors"
    path.unlink()
    make(path)
    for reader in ("weights", "header"):
        outcome = attempt_elsewhere(reader, path)
        check_sentence(outcome, path)
        assert outcome.kind == "refused" or (reader, path.read_bytes()[8:]) == ("header", b"{}")


@pytest.mark.parametrize("make", cases(hostile.INDEXES, hostile.JSON, hostile.PLACES))
def test_indexes_of_weights(attempt_elsewhere: Attempt, model: Path, make: hostile.Make) -> None:
    (model / "model.safetensors").unlink()
    make(path := model / "model.safetensors.index.json")
    check_refused(attempt_elsewhere("weights", path), path)


@pytest.mark.parametrize(("field", "value"), hostile.CONFIGS.items())
def test_configurations(attempt_elsewhere: Attempt, model: Path, field: str, value: str) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text()) | {field: "%here%"}
    path.write_text(json.dumps(config).replace('"%here%"', value))
    outcome = attempt_elsewhere("weights", path)
    check_sentence(outcome, path)
    assert outcome.kind == "refused" or field in ("rope_theta", "torch_dtype")  # the latter is not read


@pytest.mark.parametrize(
    ("reader", "make"),
    [
        *(("prompts", case.values[0]) for case in cases(hostile.PROMPTS)),
        *(("csv", case.values[0]) for case in cases(hostile.TABLES)),
        *(("tokenizer", case.values[0]) for case in cases(hostile.TOKENIZERS)),
    ],
)
def test_texts(attempt_elsewhere: Attempt, tmp_path: Path, reader: str, make: hostile.Make) -> None:
    make(path := tmp_path / NAMES.get(reader, "file"))
    check_refused(attempt_elsewhere(reader, path), path)


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(attempt_elsewhere: Attempt, model: Path) -> None:
    for reader, name in (("config", "config.json"), ("tokenizer", "tokenizer.json"), ("weights", "model.safetensors")):
        path = model / name
        before = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        check_refused(attempt_elsewhere(reader, path), path)
        path.unlink()
        path.write_bytes(before)


hostile_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from([-1, 0, 1, 2**31, 2**53, 2**63, 10**30, 10**4000]),
        st.floats(),
        st.text(max_size=20),
        st.sampled_from(["a" * 10_000, "\ud800", "../../etc/passwd", "\x1b[31m", "\0"]),
    ),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _with(value[path[0]], path[1:], new)
    return copy


quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("reader", ["plan", "report", "profile", "workload", "config", "planned config", "adapter"])
@quick
@given(data=st.data())
def test_documents_with_anything_anywhere(
    valid: Mapping[str, Path], tmp_path: Path, reader: str, data: st.DataObject
) -> None:
    document = json.loads(valid[reader].read_text())
    places = list(_places(document))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places))
        try:
            document = _with(document, place, data.draw(hostile_values))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took that place away
    path = tmp_path / NAMES.get(reader, "file")
    _write_json(path, document)
    check_sentence(attempt(reader, path), path)


def _write_json(path: Path, document: object) -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    path.write_text(json.dumps(document), encoding="utf-8")
    sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize(
    "reader", ["plan", "profile", "trace", "op tables", "prompts", "csv", "config", "tokenizer", "weights"]
)
@quick
@given(data=st.data())
def test_files_with_other_bytes(valid: Mapping[str, Path], model: Path, reader: str, data: st.DataObject) -> None:
    content = bytearray(valid[reader].read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, max(0, len(content) - 1)))
        content[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path = model / valid[reader].name
    before = path.read_bytes() if path.exists() else b""
    path.write_bytes(content[: data.draw(st.sampled_from([None, None, None, len(content) // 2]))])
    try:
        check_sentence(attempt(reader, path), path)
    finally:
        path.write_bytes(before)


@quick
@given(data=st.data())
def test_traces_with_any_arrays(tmp_path: Path, data: st.DataObject) -> None:
    made = samples.trace()
    path = tmp_path / "trace.npz"
    made.save(path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    name = data.draw(st.sampled_from(sorted(arrays)))
    dtype = data.draw(st.sampled_from(["i8", "u8", "i4", "f4", "f8", "c16", "U3", "S2", "?", "M8[s]"]))
    shape = data.draw(st.lists(st.integers(0, 6), max_size=3))
    fill = data.draw(st.sampled_from([0, 1, -1, 2**31, 2**62, 1e30]))
    with np.errstate(all="ignore"):
        changed = np.full(shape, fill).astype(dtype) if dtype not in ("M8[s]",) else np.zeros(shape, dtype)
    path.write_bytes(hostile.saved(**(arrays | {name: changed})))
    check_sentence(attempt("trace", path), path)
    if attempt("trace", path).kind == "accepted":
        AcceptanceTrace.load(path).rank_acceptance(4)
