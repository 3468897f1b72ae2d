"""The compiled kernels: exact bytes, and results that depend neither on rows nor on threads.

Whether they are right: test_cpu_model.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.cpu import model
from swiftspec.engine.model.cpu.kernels import KernelLayers, Workspace
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.cpu.packing import Packer
from swiftspec.engine.model.kv_cache import KVCache
from swiftspec.engine.model.sampling.sampler import Sampler, top_candidates
from swiftspec.engine.model.weights.checkpoint import weight_shapes
from swiftspec.engine.model.weights.loader import LoadedModel
from swiftspec.kernels.cpu_library import Library, load_library
from swiftspec.models.spec import ModelSpec
from tests.engine.checkpoints import MIXTURES, VARIANTS, VOCAB_SIZE, reference_logits, write_checkpoint
from tests.engine.conftest import two_cores
from tests.engine.forwards import by_slot, forward, prefill
from tests.engine.shapes import small_spec

NUM_TOKENS = 40
NUM_ROWS = 128
THREADS = (1, 2, 5)
DTYPES = (torch.float32, torch.bfloat16, torch.int8)


@pytest.fixture(scope="module")
def library() -> Library:
    library = load_library()
    if library is None:
        pytest.skip("no C++ compiler here")
    return library


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=VARIANTS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    drawn: list[int] = torch.randint(VOCAB_SIZE, (count,), generator=generator).tolist()
    return drawn


def one_by_one(decoder: CpuDecoder, text: list[int]) -> tuple[Tensor, KVCache]:
    """Logits [R, V] of a text decoded one token at a time, and the cache behind it."""
    cache = decoder.new_cache(NUM_TOKENS + 16)
    logits = []
    for position, token in enumerate(text):
        logits.append(forward(decoder, [token], [position], [0], cache)[0])
        cache.keep((0,), 1)
    return torch.stack(logits), cache


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_threads", THREADS)
def test_a_rows_logits_are_the_same_bits_however_it_is_computed(
    directory: Path, num_threads: int, dtype: torch.dtype
) -> None:
    """Alone, in a prompt, in a chain and as a branch of a tree, whose other nodes lie between it and its parents."""
    text = tokens(NUM_TOKENS)
    torch.set_num_threads(1)
    alone, reference = one_by_one(CpuDecoder(directory, dtype=dtype), text)
    torch.set_num_threads(num_threads)
    decoder = CpuDecoder(directory, dtype=dtype)  # which takes as many threads as there are now
    cache = decoder.new_cache(NUM_TOKENS + 16)
    for num_rows in range(1, 14):
        cache.reset()
        num_prompt = NUM_TOKENS - num_rows
        assert torch.equal(prefill(decoder, text[:num_prompt], cache), alone[num_prompt - 1])
        positions = range(num_prompt, NUM_TOKENS)
        chain = forward(decoder, text[num_prompt:], positions, [(1 << row) - 1 for row in range(num_rows)], cache)
        assert torch.equal(chain, alone[num_prompt:])
    assert torch.equal(by_slot(cache)[:, :, :, :NUM_TOKENS], by_slot(reference)[:, :, :, :NUM_TOKENS])

    cache.reset()
    prefill(decoder, text[:-3], cache)
    others = tokens(3, seed=1)
    rows = [text[-3], others[0], text[-2], others[1], others[2], text[-1]]
    bits = [0b0, 0b0, 0b001, 0b010, 0b001, 0b101]
    depths = [0, 0, 1, 1, 1, 2]
    tree = forward(decoder, rows, [NUM_TOKENS - 3 + depth for depth in depths], bits, cache)
    assert torch.equal(tree[[0, 2, 5]], alone[-3:])


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_held_in_their_own_bytes_and_count_as_they_are(
    stored: torch.dtype, tmp_path: Path, library: Library
) -> None:
    directory = write_checkpoint(tmp_path / "model", "llama-tied")
    rounded(directory, stored)
    decoder = CpuDecoder(directory)
    assert isinstance(decoder._layers, KernelLayers)
    held = {panels.dtype for panels in matrices(decoder._layers._packer)}
    exact = stored if stored != torch.float16 or library.has_float16 else torch.float32
    assert held == {exact}
    text = tokens(NUM_TOKENS)
    logits = prefill(decoder, text, decoder.new_cache(NUM_TOKENS))
    torch.testing.assert_close(logits, reference_logits(directory, text)[-1], rtol=0, atol=1e-4)


@pytest.mark.usefixtures("library")
def test_float32_weights_that_fit_two_bytes_are_held_in_two(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "llama")
    rounded(directory, torch.bfloat16)
    weights = load_file(directory / "model.safetensors")
    save_file({name: each.float() for name, each in weights.items()}, directory / "model.safetensors")
    layers = CpuDecoder(directory)._layers
    assert isinstance(layers, KernelLayers)
    assert {panels.dtype for panels in matrices(layers._packer)} == {torch.bfloat16}


def rounded(directory: Path, dtype: torch.dtype) -> None:
    """The checkpoint's weights in `dtype`."""
    path = directory / "model.safetensors"
    save_file({name: each.to(dtype) for name, each in load_file(path).items()}, path, metadata={"format": "pt"})


def matrices(packed: Packer) -> list[Tensor]:
    return [each for each in packed._kept if isinstance(each, Tensor) and each.ndim == 4]  # panels


@pytest.mark.usefixtures("library")
def test_int8_is_near_the_exact_weights(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "llama-tied")
    text = tokens(NUM_TOKENS)
    decoder = CpuDecoder(directory, dtype=torch.int8)
    logits = prefill(decoder, text, decoder.new_cache(NUM_TOKENS))
    exact = reference_logits(directory, text)[-1]
    assert 0.0 < (logits - exact).norm() / exact.norm() < 0.07  # 0.046 of it from the weights
    assert isinstance(decoder._layers, KernelLayers)
    assert {panels.dtype for panels in matrices(decoder._layers._packer)} == {torch.uint8}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("num_tokens", "k"), [(VOCAB_SIZE, 5), (VOCAB_SIZE, VOCAB_SIZE), (4096, 1), (5003, 15)])
def test_candidates_are_those_of_torch(num_tokens: int, k: int) -> None:
    logits = 5.0 * torch.randn(3, num_tokens, generator=torch.Generator().manual_seed(0))
    logits[1] = 0.0  # all alike: the first ones
    logits[2, 7] = -torch.inf
    tokens_, log_probs = top_candidates(logits, k)
    best = logits.log_softmax(-1).topk(k)
    assert tokens_[0] == best.indices[0].tolist()
    assert tokens_[1] == list(range(k)) or k > 64
    torch.testing.assert_close(torch.tensor(log_probs), best.values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_tokens", [5, 64, 4099])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_tokens_are_drawn_and_guessed_as_by_torch(
    library: Library, num_tokens: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = 3.0 * torch.randn(40, num_tokens, generator=torch.Generator().manual_seed(1))
    logits[:, 2] = -torch.inf  # a barred token
    sampler, positions, k = Sampler(temperature=temperature, seed=5), range(7, 47), min(4, num_tokens - 1)
    drawn, (guesses, log_probs) = sampler.choose(logits, positions), sampler.guesses(logits, positions, k)
    monkeypatch.setattr("swiftspec.engine.model.sampling.sampler.loaded_library", lambda: None)
    assert drawn == sampler.choose(logits, positions)
    wanted, wanted_log_probs = sampler.guesses(logits, positions, k)
    assert guesses == wanted
    torch.testing.assert_close(torch.tensor(log_probs), torch.tensor(wanted_log_probs), rtol=1e-5, atol=1e-5)
    assert [best for best, *_ in guesses] == drawn


def test_a_row_of_nans_draws_some_token(library: Library) -> None:
    assert Sampler(temperature=1.0).choose(torch.full((1, 12), torch.nan), [3]) == [0]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("token", "position", "wrong", "end"),
    [
        (VOCAB_SIZE, 0, "token", VOCAB_SIZE),
        (-1, 0, "token", VOCAB_SIZE),
        (3, NUM_TOKENS, "position", NUM_TOKENS),
        (3, -1, "position", NUM_TOKENS),
    ],
)
def test_a_token_or_position_that_does_not_exist_is_refused(
    token: int, position: int, wrong: str, end: int, tmp_path: Path
) -> None:
    decoder = CpuDecoder(write_checkpoint(tmp_path / "model", "llama"))
    cache = decoder.new_cache(NUM_TOKENS)
    with pytest.raises(ValueError, match=f"sequence 0: {wrong} is .*; expected 0 to {end - 1}"):
        forward(decoder, [5, token], [0, position], [0, 1], cache)


@pytest.mark.usefixtures("library")
def test_gates_of_any_size_are_those_of_torch(tmp_path: Path) -> None:
    """Where e to their power is no float32."""
    directory = write_checkpoint(tmp_path / "model", "llama")
    path = directory / "model.safetensors"
    weights = load_file(path)
    weights |= {name: 400.0 * each for name, each in weights.items() if "gate_proj" in name}
    weights |= {name: each / 400.0 for name, each in weights.items() if "up_proj" in name}
    save_file(weights, path, metadata={"format": "pt"})
    text = tokens(NUM_TOKENS)
    decoder = CpuDecoder(directory)
    logits = prefill(decoder, text, decoder.new_cache(NUM_TOKENS))
    torch.testing.assert_close(logits, reference_logits(directory, text)[-1], rtol=1e-4, atol=1e-3)


def test_a_forked_child_computes_with_threads_of_its_own(tmp_path: Path, library: Library) -> None:
    torch.set_num_threads(2)
    decoder, text = CpuDecoder(write_checkpoint(tmp_path / "model", "llama")), tokens(NUM_TOKENS)
    expected = prefill(decoder, text, decoder.new_cache(NUM_TOKENS))
    path = tmp_path / "logits.pt"
    if not (child := os.fork()):
        torch.save(prefill(decoder, text, decoder.new_cache(NUM_TOKENS)), path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(torch.load(path), expected)


@pytest.mark.parametrize("size", [33, 62, 64, 126, 128, 1000])
def test_a_rounded_row_has_room_for_all_its_words(size: int) -> None:
    """On the oldest processors: one for each input of whole groups of four, and two for each block of 128."""
    work = Workspace(small_spec(intermediate_size=size), 1, models=[], rounds_rows=True)
    assert work.step.rounded_width >= -(-size // 4) * 4 + 2 * -(-size // 128)


@pytest.mark.usefixtures("library")
def test_a_prompt_in_pieces_gives_the_same_bits(directory: Path) -> None:
    text, decoder = tokens(NUM_TOKENS), CpuDecoder(directory)
    whole = prefill(decoder, text, decoder.new_cache(NUM_TOKENS))
    decoder._layers.longest_piece = 16
    assert torch.equal(prefill(decoder, text, decoder.new_cache(NUM_TOKENS)), whole)


@pytest.mark.alone
@two_cores
@pytest.mark.usefixtures("library")
def test_a_thread_that_slept_while_others_ended_a_stage_computes_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three tasks of a millisecond for two threads: one waits longer than it spins, in every layer."""
    spec = small_spec(hidden_size=384, intermediate_size=16384, num_layers=6)
    weights = {name: torch.rand(shape) for name, shape in weight_shapes(spec).items()}
    torch.set_num_threads(2)
    monkeypatch.setattr(model, "load_tenants", lambda *_, **__: (spec, [LoadedModel(weights, {})]))
    decoder = CpuDecoder("")
    cache = decoder.new_cache(NUM_ROWS)
    shares = []
    for _ in range(5):  # another process may have a core for a while
        before = seconds_of_threads()
        prefill(decoder, [1] * NUM_ROWS, cache)
        cache.reset()
        taken = sorted(after - before.get(thread, 0.0) for thread, after in seconds_of_threads().items())
        shares.append(taken[-2] / sum(taken))
    assert median(shares) > 0.2, "of two threads, the one that computes less"


def seconds_of_threads() -> dict[str, float]:
    """CPU time of each thread of this process."""
    paths = Path("/proc/self/task").glob("*/schedstat")
    return {path.parent.name: 1e-9 * int(path.read_text().split()[0]) for path in paths}


def test_without_a_compiler_torch_computes(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "model", "llama")
    program = (
        "import sys, torch\n"
        "from swiftspec.engine.model.cpu.model import CpuDecoder\n"
        "decoder = CpuDecoder(sys.argv[1])\n"
        "print(type(decoder._layers).__name__)\n"
        "CpuDecoder(sys.argv[1], dtype=torch.int8)\n"
    )
    variables = os.environ | {"CXX": "no-such-compiler"}
    command = [sys.executable, "-c", program, str(directory)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["TorchTenants"]
    assert "FieldError: dtype is 'int8'" in done.stderr


# The share that rounding may change of the logits' norm.
@pytest.mark.parametrize("capability", ["default", "avx2"])
@pytest.mark.parametrize(
    ("dtype", "share"), [(torch.float32, 1e-5), (torch.bfloat16, 0.08), (torch.int8, 0.25)], ids=str
)
def test_older_instructions_give_the_same_tokens(
    capability: str, dtype: torch.dtype, share: float, tmp_path: Path, library: Library
) -> None:
    """Not the same bits: vectors are of other widths. On this machine, `ATEN_CPU_CAPABILITY` limits them."""
    directories = [write_checkpoint(tmp_path / variant, variant) for variant in (*VARIANTS, *MIXTURES)]
    text = tokens(NUM_TOKENS)
    program = (
        "import sys, torch\n"
        "from swiftspec.engine.model.cpu.model import CpuDecoder\n"
        "from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, ForwardKind\n"
        "from swiftspec.kernels.cpu_library import load_library\n"
        f"batch = ForwardBatch(ForwardKind.EXACT, (Chunk(0, {tuple(text)}),))\n"
        "logits = []\n"
        "for directory in sys.argv[1:]:\n"
        f"    decoder = CpuDecoder(directory, dtype={dtype})\n"
        f"    logits.append(decoder.forward(batch, [decoder.new_cache({len(text)})]).logits[0][0].clone())\n"
        "torch.save((load_library().lanes, logits), sys.stdout.buffer)\n"
    )
    variables = os.environ | {"ATEN_CPU_CAPABILITY": capability}
    command = [sys.executable, "-c", program, *map(str, directories)]
    path = tmp_path / "logits.pt"
    path.write_bytes(subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE).stdout)
    lanes, found = torch.load(path)
    # This process may itself be limited further, or the machine have no AVX2.
    assert lanes in ({"default": 4, "avx2": 8}[capability], library.lanes)
    for directory, logits in zip(directories, found, strict=True):
        exact = reference_logits(directory, text)[-1]
        assert (logits - exact).norm() <= share * exact.norm()
        assert ModelSpec.from_directory(directory).vocab_size == logits.shape[0]
