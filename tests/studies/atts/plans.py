"""Plans of the bundled models, one for each server; both on the cores that there are."""

from swiftspec.artifacts.plan import Plan
from swiftspec.files.document import ModelRef
from swiftspec.policies.base import Value
from tests.cli.samples import candidate
from tests.cli.samples import plan as sample_plan

TARGET, DRAFT = (ModelRef(model=f"demo/{name}", dtype="float32") for name in ("target", "draft"))


def plan_of(model: ModelRef, policy: str = "autoregressive", **shape: Value) -> Plan:
    """A server of one model; if its policy drafts, by the bundled draft."""
    chosen = candidate(policy, tokens_per_s=50.0, shape=shape)
    return sample_plan(target=model, draft=DRAFT).model_copy(update={"chosen": chosen, "alternatives": ()})
