"""Steps of a server that follow a known law, and its profile."""

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.served import MeasuredStep, Served
from swiftspec.engines.words import Method
from swiftspec.files.document import ModelRef
from swiftspec.profiler.served.fit import Coefficients, FittedSteps
from swiftspec.profiler.served.measure import ProbeSizes, ServerTimes, profile_of
from swiftspec.profiler.served.probes import Drafting

KNOWN = FittedSteps(
    rows=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    rows_s=(0.040, 0.041, 0.043, 0.047, 0.060, 0.085, 0.130, 0.220, 0.400, 0.770),
    coefficients=Coefficients(
        sequence_s=2e-4,
        cached_s=4e-6,
        pair_s=1e-7,
        lookup_s=0.002,
        round_s=0.003,
        draft_s=0.0015,
        draft_row_s=1e-4,
        draft_cached_s=5e-7,
    ),
)
SIZES = ProbeSizes(sequences=8, longest=1024)
STEP = MeasuredStep(
    drafting="plain",
    sequences=1,
    rows=1.0,
    cache_tokens=16.0,
    levels=0.0,
    read=0,
    read_before=0,
    seconds=0.041,
    fitted_s=0.040,
)


def known_profile() -> Profile:
    """The profile of a vLLM on CPUs whose steps are KNOWN, with a separate draft model."""
    served = Served(
        engine="vllm@0.32.0",
        methods=(Method.PROMPT_LOOKUP, Method.MODEL),
        options=("--max-num-seqs", "16"),
        step_tokens=2048,
        requests=16,
        prefix_block=128,
        runs_ahead=False,
        cache_tokens=20_000,
        beside_draft=19_000,
        request_s=0.006,
        prompt_token_s=0.0,
        measured=(STEP,),
        minutes=5.0,
    )
    return profile_of(
        ServerTimes(steps=KNOWN, request_s=0.006, prompt_token_s=0.0, measured=(STEP,)),
        SIZES,
        device="cpu",
        target=ModelRef(model="demo/target", dtype="float32"),
        draft=ModelRef(model="demo/draft", dtype="float32"),
        served=served,
        policies={Drafting.PLAIN: "autoregressive", Drafting.LOOKUP: "prompt_lookup", Drafting.DRAFT: "serial_chain"},
    )
