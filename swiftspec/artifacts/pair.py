"""A model pair as named by the user: directories, shapes, inflation, dtype and vocabularies, checked."""

from dataclasses import dataclass
from pathlib import Path

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef
from swiftspec.models.draft_kinds import check_pair
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec, model_directory

DTYPES = {"float32": "float32", "fp32": "float32", "bfloat16": "bfloat16", "bf16": "bfloat16"}
# Matrices are rounded to int8 at load, one scale an output; everything else is float32.
CPU_DTYPES = DTYPES | {"int8": "int8"}
# The layers' weights are quantised to fp8 or int4 at load; everything else is bfloat16.
GPU_DTYPES = DTYPES | {"float16": "float16", "fp16": "float16", "fp8": "fp8", "int4": "int4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, perhaps inflated, and its draft."""

    target: ModelRef
    draft: ModelRef


def model_name(model: str) -> str:
    """`demo/NAME` unchanged; the path of a directory made absolute, so that files that name it work from any folder.

    ValueError: if there is no such directory.
    """
    directory = model_directory(model)
    return model if directory != Path(model) else str(directory.resolve())


def resolve_pair(*, target: str, draft: str, inflate: str | None, dtype: str, device: str = "cpu") -> Pair:
    """Both models, readable, and the draft one for this target. ValueError with one sentence if not."""
    target, draft = model_name(target), model_name(draft)
    spec = ModelSpec.from_directory(model_directory(target))
    ModelSpec.from_directory(model_directory(draft))
    if inflate is not None:
        Inflation.parse(inflate).inflated(spec)
    check_pair(model_directory(target), model_directory(draft))
    target_dtype, draft_dtype = (named_dtype(each, device=device) for each in dtypes_of_roles(dtype))
    return Pair(
        target=ModelRef(model=target, inflate=inflate, dtype=target_dtype),
        draft=ModelRef(model=draft, dtype=draft_dtype),
    )


def dtypes_of_roles(dtype: str) -> tuple[str, str]:
    """The target's and the draft's of `--dtype`: one for both, or TARGET,DRAFT."""
    target, comma, draft = dtype.partition(",")
    return target, draft if comma else target


def named_dtype(dtype: str, *, device: str = "cpu") -> str:
    """torch's name of a dtype, or of a quantisation. ValueError if the device has no such dtype."""
    known = GPU_DTYPES if device == "cuda" else CPU_DTYPES
    if dtype not in known:
        raise FieldError("dtype", repr(dtype), f"expected auto or one of {', '.join(known)}, on {device}")
    return known[dtype]


def check_models(pair: Pair, *, profile: Profile, profile_path: Path, trace: AcceptanceTrace, trace_path: Path) -> None:
    """ValueError unless profile and trace were made with these models.

    Latencies depend on inflation and dtype. Acceptance does not, because an inflated target has the same output: a
    trace only has to be of the same models.
    """
    named = {"target": pair.target, "draft": pair.draft}
    for role, model in (("target", profile.target), ("draft", profile.draft)):
        if (model.model, model.inflate) != (named[role].model, named[role].inflate):
            raise ValueError(
                f"{profile_path}: {role} is {model}; expected {named[role]}, as --{role} and --inflate say"
            )
    for role, model in (("target", trace.target), ("draft", trace.draft)):
        if model.model != named[role].model:
            raise ValueError(f"{trace_path}: {role} is {model.model}; --{role} is {named[role].model}")
