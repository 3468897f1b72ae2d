"""Profile of a pair on devices by name: the one composer, so that backtests test the very profiles of plans."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from swiftspec.artifacts.profile import Collective, Profile, StepPoint
from swiftspec.costmodel.compose import ModelGroup, RoleModel, chosen_collective, host_points, priced_degrees
from swiftspec.costmodel.expert_shapes import ExpertShape
from swiftspec.costmodel.published import PublishedForwards, SwiftSpecKernels, published_tables
from swiftspec.costmodel.routing import ASSUMED_ROUTING, Routing
from swiftspec.costmodel.shipped import kernels_of, source_of, tables_of
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef, Origin
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.policies.effects import Role
from swiftspec.timing.sharing import Sharing, SharingCost

Int4Forwards = Callable[[DeviceSpec], PublishedForwards]


def device_profile(
    target: RoleModel,
    draft: RoleModel,
    *,
    device: str,
    num_devices: int,
    max_context: int,
    library: str | None = None,
    op_tables: Path | None = None,
    collective: str | None = None,
    int4_forwards: Int4Forwards | None = SwiftSpecKernels,
    routing: Routing = ASSUMED_ROUTING,
) -> Profile:
    """Every forward of both roles at every TP degree, and the sources of their times.

    Degrees are those that fit a node, whether the weights fit or not; of sparse models those only that divide them, and
    whose experts are in the tables. Composed steps have no spread: all their quantiles are the same. Steps of several
    sequences have composed sharing costs, those of published forwards too.

    device: name in the registry.
    max_context: the longest prefix, in tokens; beyond it a step costs what it costs there.
    library: library of the op tables; the usual one if not given.
    op_tables: the user's, instead of the packaged ones.
    collective: the all-reduce of composed forwards; the fastest known one if not given.
    int4_forwards: from a device to published whole forwards with int4 weights, in place of composed ones but for
        prefills; composed as in any other format if None.
    routing: agreement between the experts of a sequence's rows.

    ValueError: if the op tables are of another device, or have no rows of the library.
    """
    spec_of_device = named_device(device)
    if num_devices < 1:
        raise FieldError("num_devices", num_devices, "expected at least 1")
    if max_context < 1:
        raise ValueError(f"max_context is {max_context}; expected at least 1")
    kernels = kernels_of(device, framework=library, path=op_tables)
    published = int4_forwards(spec_of_device) if int4_forwards else None
    steps: list[StepPoint] = []
    collectives: list[Collective] = []
    costs: list[SharingCost] = []
    for role, model in ((Role.TARGET, target), (Role.DRAFT, draft)):
        spec = model.model.spec
        has_published = model.quant == "int4" and not model.model.products and not isinstance(spec, SparseSpec)
        forwards = published if has_published else None
        degrees = range(1, min(num_devices, spec_of_device.devices_per_node) + 1)
        for degree in priced_degrees(role, model.model, kernels=kernels, quant=model.quant, degrees=degrees):
            choice = chosen_collective(role, spec, kernels=kernels, degree=degree, published=forwards, named=collective)
            collectives += [choice] if choice else []
            group = ModelGroup(
                role=role,
                model=model,
                kernels=kernels,
                degree=degree,
                collective=choice.implementation if choice else None,
                published=forwards,
                routing=routing,
            )
            steps += group.steps(max_context, most_cached=min(max_context, model.kv_budget or max_context))
            costs.append(group.further_sequence())
    sources = [source_of(device, op_tables), *_unmeasured_experts(device, op_tables, (target, draft))]
    if published is not None and "int4" in (target.quant, draft.quant):
        sources.append(f"forwards in int4 by published figures: {published_tables()['source']}")
    if any(isinstance(one.model.spec, SparseSpec) and one.model.spec.experts for one in (target, draft)):
        sources.append(str(routing))
    if draft.kv_budget is not None:
        sources.append(f"a draft whose cache keeps {draft.kv_budget} tokens, which is assumed")
    feature_s = draft.feature_bytes / spec_of_device.link_bandwidth_Bps
    return Profile(
        origin=Origin.here(),
        sources=tuple(sources),
        device=device,
        num_devices=num_devices,
        target=ModelRef(model=target.model.name, dtype=target.quant),
        draft=ModelRef(model=draft.model.name, dtype=draft.quant),
        steps=tuple(steps),
        host=tuple(host_points(feature_s, beside_device=target.host.beside_device)),
        feature_bytes=draft.feature_bytes,
        peers_interfere=False,
        collectives=tuple(collectives),
        sharing=Sharing(costs=tuple(costs)),
    )


def _unmeasured_experts(device: str, op_tables: Path | None, models: Sequence[RoleModel]) -> Iterator[str]:
    """A clause for each model whose experts are in no table, and lie between others."""
    tables = tables_of(device, op_tables)
    for model in models:
        spec = model.model.spec
        if tables is not None and spec.experts is not None:
            shape = ExpertShape.of(spec.experts, spec.hidden_size, model.quant)
            if not shape.is_measured(tables):
                yield f"experts of {model.model.name}, which are in no table, between the nearest measured ones"
