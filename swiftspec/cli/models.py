"""The models that a user names, checked: directories, shapes, inflation, dtype, vocabularies."""

from dataclasses import dataclass
from pathlib import Path

from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.plan import Plan
from swiftspec.models.spec import Inflation, ModelSpec, model_directory
from swiftspec.models.tokenizer import Tokenizer, check_same_vocabulary

__all__ = ["DTYPES", "Pair", "model_name", "resolve_dtype", "resolve_pair", "target_tokenizer"]

DTYPES = {
    "float32": "float32",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
# fp8 and int4 are what the layers' weights are quantised to at load; all else is bfloat16.
GPU_DTYPES = DTYPES | {"float16": "float16", "fp16": "float16", "fp8": "fp8", "int4": "int4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, perhaps inflated, and its draft."""

    target: ModelRef
    draft: ModelRef

    @property
    def target_directory(self) -> Path:
        return model_directory(self.target.model)


def model_name(model: str) -> str:
    """`demo/NAME` as it is; the path of a directory made absolute, so that files that name it can be used anywhere.

    Raises
    ------
    ValueError
        If there is no such directory.
    """
    directory = model_directory(model)
    return model if directory != Path(model) else str(directory.resolve())


def resolve_pair(*, target: str, draft: str, inflate: str | None, dtype: str, device: str = "cpu") -> Pair:
    """Both models, found readable and made for each other. ValueError with one sentence if not."""
    target, draft = model_name(target), model_name(draft)
    spec = ModelSpec.from_directory(model_directory(target))
    ModelSpec.from_directory(model_directory(draft))
    if inflate is not None:
        Inflation.parse(inflate).inflated(spec)
    check_same_vocabulary(model_directory(target), model_directory(draft))
    dtype = resolve_dtype(dtype, target=target, inflate=inflate, device=device)
    return Pair(target=ModelRef(model=target, inflate=inflate, dtype=dtype), draft=ModelRef(model=draft, dtype=dtype))


def resolve_dtype(dtype: str, *, target: str, inflate: str | None, device: str = "cpu") -> str:
    """torch's name of a dtype, or what weights are quantised to; `auto`: the faster one, which on a CPU is measured."""
    known = GPU_DTYPES if device == "cuda" else DTYPES
    if dtype != "auto":
        if dtype not in known:
            raise ValueError(f"--dtype is {dtype!r}; expected auto or one of {', '.join(known)}, on {device}")
        return known[dtype]
    if device == "cuda":
        return "bfloat16"
    from swiftspec.profiler.dtype_choice import choose_dtype

    return choose_dtype(model=target, inflate=inflate)


def target_tokenizer(plan: Plan) -> Tokenizer:
    """The tokenizer of a plan's target."""
    return Tokenizer(model_directory(plan.target.model))
