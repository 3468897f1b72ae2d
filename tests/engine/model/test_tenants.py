"""Several fine-tunes in one decoder: each says what it says alone, and equal weights are held once."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.cpu import model as cpu_model
from swiftspec.engine.model.cpu.kernels import KernelLayers
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.engine.model.weights.low_rank import cut_adapters, load_adapters
from swiftspec.models.inflation import Inflation
from swiftspec.models.sharding import shard_of
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind, Row
from tests.engine.checkpoints import VARIANTS, VOCAB_SIZE, write_checkpoint
from tests.engine.fine_tunes import ALL_PROJECTIONS, fine_tune, merge, write_adapter
from tests.engine.forwards import prefill

pytestmark = pytest.mark.usefixtures("one_thread")

EXACT = ForwardKind.EXACT
TEXT = [5, 17, 2, 80, 41, 3, 3, 19, 60, 7, 33, 21]
Load = Callable[..., CpuDecoder]


def load_torch(*arguments: Any, **options: Any) -> CpuDecoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_model, "load_library", lambda: None)
        return CpuDecoder(*arguments, **options)


@pytest.fixture(params=["kernels", "torch"])
def load(request: pytest.FixtureRequest) -> Load:
    """By compiled kernels, where there is a compiler, and by torch."""
    return CpuDecoder if request.param == "kernels" else load_torch


class Family:
    """A model, two fine-tunes that differ from it in one layer each, an adapter, and that adapter's merged model."""

    def __init__(self, folder: Path, variant: str) -> None:
        self.base = write_checkpoint(folder / "base", variant)
        self.last = fine_tune(self.base, folder / "last", layers=[2], seed=1)
        self.middle = fine_tune(self.base, folder / "middle", layers=[1], seed=2)
        self.adapter = write_adapter(self.base, folder / "adapter", seed=3)
        self.merged = merge(self.base, self.adapter, folder / "merged")

    @property
    def tenants(self) -> list[Path]:
        return [self.last, self.adapter, self.middle]

    @property
    def alone(self) -> list[Path]:
        """Directories of ordinary models that say what the base and its tenants do."""
        return [self.base, self.last, self.merged, self.middle]


@pytest.fixture(scope="module", params=["llama", "qwen2-tied", "qwen3-tied-bias", "llama-head-dim"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(tmp_path_factory.mktemp("family"), request.param)


def logits_alone(decoder: CpuDecoder, tenant: int = 0) -> Tensor:
    cache = decoder.new_cache(32)
    cache.tenant = tenant
    return prefill(decoder, TEXT, cache)


def test_each_says_what_its_own_model_says(family: Family, load: Load) -> None:
    together = load(family.base, tenants=family.tenants)
    own = [logits_alone(load(directory)) for directory in family.alone]
    for tenant, expected in enumerate(own):
        torch.testing.assert_close(logits_alone(together, tenant), expected, rtol=0, atol=2e-4)
    assert torch.equal(logits_alone(together, 1), own[1])  # a fine-tune's to the last bit
    for first, second in [(0, 1), (0, 2), (0, 3), (1, 2)]:
        assert (own[first] - own[second]).abs().max() > 0.01


@pytest.mark.parametrize("kind", [EXACT, ForwardKind.LAYER_PARALLEL])
def test_rows_do_not_depend_on_the_tenants_beside_them(family: Family, load: Load, kind: ForwardKind) -> None:
    """In batches of any order, with prompts, rows and candidates."""
    decoder, chance = load(family.base, tenants=family.tenants), random.Random(0)
    for _ in range(6):
        tenants = [chance.randrange(4) for _ in range(5)]
        runner = ModelRunner(decoder, [decoder.new_cache(64) for _ in tenants])
        for sequence, tenant in enumerate(tenants):
            runner.reset(sequence, tenant)
            runner.forward(ForwardBatch(EXACT, (Chunk(sequence, tuple(TEXT[: 3 + sequence])),)))
        entries = tuple(Rows(sequence, (Row(7, 3 + sequence, 0), Row(9, 4 + sequence, 1))) for sequence in range(5))
        together = runner.forward(ForwardBatch(kind, entries, 3))
        texts = [logits.clone() for logits in together.logits]
        for sequence, entry in enumerate(entries):
            runner.keep(sequence, (), 0)
            alone = runner.forward(ForwardBatch(kind, (entry,), 3))
            if isinstance(decoder._layers, KernelLayers):
                assert torch.equal(alone.logits[0], texts[sequence])
                assert alone.candidates[0] == together.candidates[sequence]
            torch.testing.assert_close(alone.logits[0], texts[sequence], rtol=0, atol=1e-4)


def test_halves_of_a_forward_are_those_of_each_tenant(family: Family, load: Load) -> None:
    decoder = load(family.base, tenants=family.tenants)
    runner = ModelRunner(decoder, [decoder.new_cache(64) for _ in range(3)])
    for sequence, tenant in enumerate((3, 0, 1)):
        runner.reset(sequence, tenant)
        runner.forward(ForwardBatch(EXACT, (Chunk(sequence, tuple(TEXT)),)))
    entries = tuple(Rows(sequence, (Row(7, len(TEXT), 0),)) for sequence in range(3))
    whole = [each.clone() for each in runner.forward(ForwardBatch(EXACT, entries)).logits]
    for sequence in range(3):
        runner.keep(sequence, (), 0)
    runner.forward(ForwardBatch(ForwardKind.FIRST_HALF, entries, 2))
    second = runner.forward(ForwardBatch(ForwardKind.SECOND_HALF, entries))
    for expected, found in zip(whole, second.logits, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_memory_grows_by_what_is_private(tmp_path: Path, load: Load) -> None:
    family = Family(tmp_path, "llama")
    weights = load_file(family.last / "model.safetensors")
    private = sum(each.numel() for name, each in weights.items() if name.startswith("model.layers.2."))
    last, adapter, middle = load(family.base, tenants=family.tenants).tenant_bytes
    assert private <= last / 4 <= 1.4 * private  # panels are padded
    assert middle == last
    assert adapter > 0
    assert load(family.base, tenants=[family.base, family.last]).tenant_bytes == (0, last)


def test_an_adapter_takes_little_memory_where_it_is_not_merged(tmp_path: Path) -> None:
    family = Family(tmp_path, "llama")
    decoder = CpuDecoder(family.base, tenants=family.tenants)
    if isinstance(decoder._layers, KernelLayers):
        last, adapter, _ = decoder.tenant_bytes
        assert adapter < 3 * last  # of three layers


@pytest.mark.parametrize("projections", [("q_proj", "v_proj"), ("up_proj",), ("o_proj", "down_proj")])
def test_adapters_of_some_projections(tmp_path: Path, load: Load, projections: tuple[str, ...]) -> None:
    base = write_checkpoint(tmp_path / "base", "llama")
    adapter = write_adapter(base, tmp_path / "adapter", projections=projections, rank=3)
    expected = logits_alone(load(merge(base, adapter, tmp_path / "merged")))
    torch.testing.assert_close(logits_alone(load(base, tenants=[adapter]), 1), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    "inflation",
    [Inflation(layers=5), Inflation(hidden=96), Inflation(layers=4, hidden=96, heads=12, intermediate=200)],
    ids=str,
)
def test_tenants_of_an_inflated_model_are_inflated(tmp_path: Path, load: Load, inflation: Inflation) -> None:
    family = Family(tmp_path, "llama")
    together = load(family.base, tenants=family.tenants, inflation=inflation)
    for tenant, directory in enumerate(family.alone):
        torch.testing.assert_close(logits_alone(together, tenant), logits_alone(load(directory)), rtol=0, atol=3e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_of_an_adapter_add_up(variant: str, tmp_path: Path) -> None:
    """What ranks compute of an adapter's products, gathered or summed as those of their weights."""
    base = write_checkpoint(tmp_path / "base", variant)
    spec = ModelSpec.from_directory(base)
    adapters = load_adapters(write_adapter(base, tmp_path / "adapter"), spec)
    parts = [cut_adapters(adapters, shard_of(spec, 2, rank)) for rank in range(2)]
    assert len(adapters) == spec.num_layers * len(ALL_PROJECTIONS)
    for name, whole in adapters.items():
        product = whole.up @ whole.down
        halves = [part[name].up @ part[name].down for part in parts]
        axis = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
        if "k_proj" in name or "v_proj" in name:
            found = halves[0][: product.shape[0] // 2]
            torch.testing.assert_close(found, product[: len(found)])
        else:
            torch.testing.assert_close(torch.cat(halves, axis)[: len(product), : product.shape[1]], product)


def changed_config(adapter: Path, **changes: object) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; expected 'LORA'"),
        ({"use_dora": True}, "use_dora is True; expected null, false or empty, as in plain LoRA"),
        ({"bias": "all"}, "bias is 'all'; expected 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"r": 0}, "r is 0; expected a positive number"),
        ({"lora_alpha": "x"}, "lora_alpha is 'x'; expected a positive number"),
        ({"r": 5}, r"has shape \(.*4.*\); expected \(.*5.*\)"),
    ],
)
def test_adapters_that_are_not_supported(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    base = write_checkpoint(tmp_path / "base", "llama")
    changed_config(adapter := write_adapter(base, tmp_path / "adapter"), **changes)
    with pytest.raises(ValueError, match=said):
        CpuDecoder(base, tenants=[adapter])


def test_rank_stabilised_adapters_have_another_scale(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", "llama")
    adapter = write_adapter(base, tmp_path / "adapter", rank=4)
    spec = ModelSpec.from_directory(base)
    name = "model.layers.0.mlp.up_proj.weight"
    before = load_adapters(adapter, spec)[name].up
    changed_config(adapter, use_rslora=True)
    torch.testing.assert_close(load_adapters(adapter, spec)[name].up, 2.0 * before)


def test_tensors_that_an_adapter_lacks_or_should_not_have(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", "llama")
    adapter = write_adapter(base, tmp_path / "adapter", projections=("q_proj",))
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    save_file({each: tensor for each, tensor in tensors.items() if each != name}, path)
    with pytest.raises(ValueError, match=r"lora_B of model\.layers\.1\.self_attn\.q_proj\.weight is missing"):
        CpuDecoder(base, tenants=[adapter])
    save_file({**tensors, "base_model.model.lm_head.lora_A.weight": torch.zeros(4, 48)}, path)
    with pytest.raises(ValueError, match=r"unexpected tensor base_model\.model\.lm_head"):
        CpuDecoder(base, tenants=[adapter])
    save_file({}, path)
    with pytest.raises(ValueError, match="there are no tensors"):
        CpuDecoder(base, tenants=[adapter])


def test_a_model_of_another_shape_is_no_tenant(tmp_path: Path) -> None:
    base, other = write_checkpoint(tmp_path / "base", "llama"), write_checkpoint(tmp_path / "other", "llama-head-dim")
    with pytest.raises(ValueError, match=r"other: head_dim is 16; a tenant has that of the target, 8"):
        CpuDecoder(base, tenants=[other])


def test_a_tenant_that_there_is_not(tmp_path: Path) -> None:
    decoder = CpuDecoder(write_checkpoint(tmp_path / "base", "llama"))
    with pytest.raises(ValueError, match="tenant is 1; expected 0 to 0"):
        ModelRunner(decoder, [decoder.new_cache(8)]).reset(0, 1)
    assert decoder.spec.vocab_size == VOCAB_SIZE


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_adapter_that_is_no_number_is_refused(value: float, tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", "llama")
    adapter = write_adapter(base, tmp_path / "adapter")
    (file,) = adapter.glob("*.safetensors")
    tensors = load_file(file)
    name = sorted(tensors)[-1]
    tensors[name][0, 0] = value
    save_file(tensors, file)
    with pytest.raises(ValueError, match=rf"tensor {re.escape(name)} has NaN or infinity"):
        load_adapters(adapter, ModelSpec.from_directory(base))
