"""Facts about models shared by every stage: shape, size, and the shape after inflation.

Standard library, numpy and pydantic only: planning must work on a machine without torch.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftspec.errors import FieldError
from swiftspec.models.config_json import ConfigJson
from swiftspec.models.families import PLANNED_ONLY
from swiftspec.models.layer_parts import Attention, DenseNetwork, Experts, FeedForward, GroupedAttention
from swiftspec.models.names import ARCHITECTURES, unknown
from swiftspec.models.quantisation import BF16_BITS, BF16_BYTES, QUANTISATIONS, Part, StoredWeights
from swiftspec.models.rotary import RUNNABLE_SCALINGS, USUAL_THETA, RopeScaling, longest_context, read_rope, rope_fields

_DTYPE_BYTES: Final = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "int8": 1, "fp8": 1}
# Transformers' defaults for fields that a config.json leaves out.
_DEFAULT_MAX_POSITION: Final = {"llama": 2048, "mistral": 131072, "mixtral": 131072}
_USUAL_MAX_POSITION: Final = 32768
_DEFAULT_HEAD_DIM: Final = {"qwen3": 128}
_DEFAULT_ROPE_THETA: Final = {"mixtral": 1e6}
_USE_WINDOWS: Final = ("mistral", "mixtral")  # unless the window is null
_DEFAULT_EXPERTS: Final = {"mixtral": (8, 2), "qwen3_moe": (128, 8)}  # of a layer, and of a token
_DEFAULT_EPS: Final = {"mixtral": 1e-5}
_USUAL_EPS: Final = 1e-6
_STATE_BYTES: Final = 4  # recurrent states are kept in fp32 (mamba_ssm_dtype in the models' config.json)


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number of `dtype` ("fp32", "bf16", "fp16" or torch's spelling)."""
    if dtype not in _DTYPE_BYTES:
        raise FieldError("dtype", repr(dtype), f"expected one of {', '.join(_DTYPE_BYTES)}")
    return _DTYPE_BYTES[dtype]


def model_directory(name: str | Path) -> Path:
    """The directory of `name`: `demo/NAME` is a model shipped with the package, anything else a path."""
    directory = _directory(name)
    if not directory.is_dir():
        raise ValueError(f"model {str(name)!r}: there is no directory {directory}")
    return directory


def is_model_directory(name: str | Path) -> bool:
    """Whether the directory of `name` exists."""
    return _directory(name).is_dir()


def _directory(name: str | Path) -> Path:
    parts = Path(name).parts
    bundled = len(parts) == 2 and parts[0] == "demo"
    return Path(__file__).parents[1] / "demo" / parts[1] if bundled else Path(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """Shape of a Llama-family decoder, from its config.json.

    intermediate_size: width of a layer's feed-forward network, or of each of its experts.
    num_mtp_layers: multi-token prediction layers in the same checkpoint; no part of the model.
    experts: routed experts that every layer has in place of one dense network.
    stored: format of its checkpoint's weights, if they are quantised; known where it is planned for.
    """

    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    eos_token_ids: tuple[int, ...]
    num_mtp_layers: int = 0
    experts: Experts | None = None
    stored: StoredWeights | None = None

    @classmethod
    def from_directory(cls, directory: str | Path) -> "ModelSpec":
        """Read config.json. ValueError names directory, field and value of what is missing or unsupported."""
        return _Config.read(Path(directory)).spec()

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, source: str, runs: bool = True) -> "ModelSpec":
        """The shape from the values of a config.json; `source` names their origin in errors.

        runs: whether the engine has to run it. A plan needs the shape only, and takes windows from the config.json.
        """
        return _Config(Path(source), values).spec(runs=runs)

    def one_layer(self) -> "ModelSpec":
        """The shape of its last layer, alone."""
        return self.of_layers(self.num_layers - 1, self.num_layers)

    def of_layers(self, first: int, last: int) -> "ModelSpec":
        """The shape of its layers from `first` to before `last`, alone."""
        return dataclasses.replace(self, num_layers=last - first, num_mtp_layers=0)

    def dense_layer(self) -> "ModelSpec":
        """A dense layer as wide as this model."""
        return self.one_layer()

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; the value heads are as wide."""
        return self.num_kv_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def attention_ranks(self) -> int:
        """Ranks of a group that each have the attention of their own requests: one, unless a layout says otherwise."""
        return 1

    @property
    def attentions(self) -> Counter[Attention]:
        """Kinds of attention, and the number of layers with each."""
        attention = GroupedAttention(num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        return Counter({attention: self.num_layers})

    @property
    def feed_forwards(self) -> Counter[FeedForward]:
        """Kinds of feed-forward networks, and the number of layers with each."""
        return Counter({self.experts or DenseNetwork(size=self.intermediate_size): self.num_layers})

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer keeps a state, so that rejected tokens cannot be cut out of what it remembers."""
        return any(part.state_values for part in self.attentions)

    @property
    def attention_parameters(self) -> int:
        """Weights of all layers' attention, without biases and norms."""
        return sum(count * part.num_parameters(self.hidden_size) for part, count in self.attentions.items())

    @property
    def matrix_parameters(self) -> int:
        """Weights of all layers' projections: attention and feed-forward, without biases and norms."""
        networks = sum(count * part.num_parameters(self.hidden_size) for part, count in self.feed_forwards.items())
        return self.attention_parameters + networks

    @property
    def expert_parameters(self) -> int:
        """Weights of routed experts, which some formats quantise alone."""
        return sum(
            count * part.routed_parameters(self.hidden_size)
            for part, count in self.feed_forwards.items()
            if isinstance(part, Experts)
        )

    @property
    def parameters_by_part(self) -> dict[Part, int]:
        """Weights of the matrices that a format may quantise."""
        attention, experts = self.attention_parameters, self.expert_parameters
        return {
            Part.ATTENTION: attention,
            Part.NETWORKS: self.matrix_parameters - attention - experts,
            Part.EXPERTS: experts,
            Part.HEAD: 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size,
        }

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model; a tied head counts once."""
        biases = self.qkv_bias * (self.query_size + 2 * self.kv_size) + self.output_bias * self.hidden_size
        norms = 2 * self.hidden_size + self.qk_norm * 2 * self.head_dim
        router = self.experts.num_experts * self.hidden_size if self.experts else 0
        layer = router + biases + norms
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.matrix_parameters + self.num_layers * layer + embeddings + self.hidden_size

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Memory of what is kept of every token, all layers; windows and states, which do not grow, excepted."""
        values = sum(count * part.kv_values for part, count in self.attentions.items() if not part.window)
        return values * dtype_bytes(dtype)

    def fixed_bytes(self, dtype: str, *, context: int, rows: int) -> int:
        """Memory of a sequence that does not grow with it: its windows, and its state after each of `rows` rows."""
        kept = sum(count * part.kv_values * min(part.window, context) for part, count in self.attentions.items())
        states = sum(count * part.state_values for part, count in self.attentions.items())
        return kept * dtype_bytes(dtype) + states * _STATE_BYTES * (1 + rows)

    def objection(self, degree: int) -> str | None:
        """Reason why a group of `degree` devices cannot hold it: none, since its shards are padded."""
        del degree
        return None


class _Config(ConfigJson):
    """A config.json of a model that the engine runs."""

    def architecture(self, *, runs: bool) -> str:
        model_type = self.values.get("model_type")
        if model_type is None:
            names = self.values.get("architectures")
            first = names[0] if isinstance(names, list) and names else None
            model_type = str(first).removesuffix("ForCausalLM").lower() if first else None
        if model_type in PLANNED_ONLY:
            expected = f"one of {', '.join(ARCHITECTURES)}: its layers can be planned for, but not run"
            raise self.fail("model_type", model_type, expected)
        if model_type not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES) if runs else "those that `swiftspec list models` has at its end"
            raise self.fail("model_type", model_type, f"one of {known}")
        return str(model_type)

    def require_runnable(self, architecture: str, scaling: RopeScaling | None) -> None:
        """Refuse configurations that the engine would silently compute wrongly."""
        if self.values.get("hidden_act", "silu") not in ("silu", "swish"):
            raise self.fail("hidden_act", self.values["hidden_act"], "'silu'")
        if self.flag("mlp_bias", False):
            raise self.fail("mlp_bias", True, "false")
        field, rope = rope_fields(self)
        if scaling is not None and scaling.kind not in RUNNABLE_SCALINGS:
            raise self.fail(f"{field}.rope_type", scaling.kind, f"default, {', '.join(RUNNABLE_SCALINGS)}")
        if rope.values.get("truncate", True) is not True:
            raise self.fail(f"{field}.truncate", rope.values["truncate"], "true")
        for source in (rope, self):
            if source.number("partial_rotary_factor", 1.0) != 1.0:
                raise self.fail("partial_rotary_factor", source.values["partial_rotary_factor"], "1")
        layer_types = self.values.get("layer_types") or []
        if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
            raise self.fail("layer_types", layer_types, "'full_attention' in every layer")
        default_window = 4096 if architecture == "mistral" else None
        window = self.values.get("sliding_window", default_window)
        if window is not None and not layer_types and self.flag("use_sliding_window", architecture in _USE_WINDOWS):
            expected = "null, since sliding-window attention is not supported"
            if "sliding_window" in self.values:
                raise self.fail("sliding_window", window, expected)
            raise ValueError(
                f"{self.directory}: config.json sliding_window is left out, which means {window} in a {architecture} "
                f"model; expected {expected}"
            )

    def experts(self, architecture: str) -> Experts | None:
        """Experts of every layer. Mixtral's weights of a token's experts always add up to one."""
        if architecture not in _DEFAULT_EXPERTS:
            return None
        self.require_experts_everywhere()
        total, active = _DEFAULT_EXPERTS[architecture]
        is_mixtral = architecture == "mixtral"
        # Transformers 5 writes num_local_experts in both.
        field = self.present(("num_experts", "num_local_experts", "n_routed_experts"))
        total, active = self.integer(field, total), self.integer("num_experts_per_tok", active)
        if active > total:
            raise self.fail("num_experts_per_tok", active, f"at most the {total} experts of {field}")
        return Experts(
            num_experts=total,
            num_active=active,
            size=self.integer("intermediate_size" if is_mixtral else "moe_intermediate_size"),
            is_normalised=is_mixtral or self.flag("norm_topk_prob", False),
        )

    def spec(self, *, runs: bool = True) -> ModelSpec:
        architecture = self.architecture(runs=runs)
        theta, scaling = read_rope(self, _DEFAULT_ROPE_THETA.get(architecture, USUAL_THETA))
        if runs:
            self.require_runnable(architecture, scaling)
        hidden, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
        longest = _DEFAULT_MAX_POSITION.get(architecture, _USUAL_MAX_POSITION)
        kv_heads = self.integer("num_key_value_heads", heads)
        if heads % kv_heads:
            raise self.fail("num_key_value_heads", kv_heads, f"a divisor of the {heads} attention heads")
        head_dim = self.integer("head_dim", _DEFAULT_HEAD_DIM.get(architecture, hidden // heads))
        if head_dim % 2:
            raise self.fail("head_dim", head_dim, "an even number")
        experts = self.experts(architecture)
        attention_bias = architecture in ("llama", "qwen3", "qwen3_moe") and self.flag("attention_bias", False)
        return ModelSpec(
            architecture=architecture,
            hidden_size=hidden,
            intermediate_size=experts.size if experts else self.integer("intermediate_size"),
            num_layers=self.integer("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            vocab_size=self.integer("vocab_size"),
            max_position=longest_context(self, scaling, longest),
            rms_norm_eps=self.number("rms_norm_eps", _DEFAULT_EPS.get(architecture, _USUAL_EPS)),
            rope_theta=theta,
            rope_scaling=scaling.within(self.integer("max_position_embeddings", longest)) if scaling else None,
            tie_word_embeddings=self.flag("tie_word_embeddings", False),
            qkv_bias=architecture == "qwen2" or attention_bias,
            output_bias=attention_bias,
            qk_norm=architecture in ("qwen3", "qwen3_moe"),
            eos_token_ids=self.eos_token_ids(),
            num_mtp_layers=self.count("num_nextn_predict_layers"),
            experts=experts,
        )


def dense_format(quantisation: str, spec: ModelSpec) -> str:
    """Format of a model's matrices other than its routed experts', or of most of them if its checkpoint has several."""
    if spec.stored is not None and spec.stored.name == quantisation:
        return spec.stored.dense
    return "bf16" if QUANTISATIONS[quantisation].experts_only and spec.experts else quantisation


def weight_bytes(spec: ModelSpec, quantisation: str) -> int:
    """Memory of a model's weights; in the format of its checkpoint, as that has it.

    ValueError for a quantisation that is not in the table.
    """
    if quantisation not in QUANTISATIONS:
        raise unknown("quant", quantisation, QUANTISATIONS)
    dense = QUANTISATIONS[dense_format(quantisation, spec)].bits_per_weight
    bits = {Part.ATTENTION: dense, Part.NETWORKS: dense, Part.EXPERTS: QUANTISATIONS[quantisation].bits_per_weight}
    if spec.stored is not None and spec.stored.name == quantisation:
        bits = dict(spec.stored.bits_by_part)
    parts = spec.parameters_by_part
    rest = spec.num_parameters - sum(parts.values())
    return round(sum(count * bits.get(part, BF16_BITS) for part, count in parts.items()) / 8) + rest * BF16_BYTES
