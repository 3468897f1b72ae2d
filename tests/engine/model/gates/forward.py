import torch

from swiftspec.engine.model.forward_batch import ForwardBatch, Rows
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import triton_ops
from swiftspec.engine.model.gpu.weights import FORMATS
from swiftspec.engine.model.weights.checkpoint import weight_shapes
from swiftspec.policies.effects import ForwardKind, Row
from tests.engine.shapes import small_spec

spec = small_spec(hidden_size=1024, intermediate_size=2048, num_layers=1, num_heads=8, num_kv_heads=2, head_dim=128)
weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in weight_shapes(spec).items()}
decoder = GpuDecoder(spec, weights, weight_format=FORMATS["int4"], device="cpu", ops=triton_ops(pdl=True))
rows = Rows(0, tuple(Row(1, position, 0) for position in range(8)))
decoder.forward(ForwardBatch(ForwardKind.EXACT, (rows,)), (decoder.new_cache(1024),))
