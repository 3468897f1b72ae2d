"""The stages that measure a pair: profile and trace."""

from swiftspec.api.inputs import Prompts, read_texts
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace, SamplingParams
from swiftspec.devices.local import num_devices_here
from swiftspec.progress import Stages, silent, time_limit

NUM_CANDIDATES = 32  # recorded per position, more than any policy keeps per node


def profile(
    target: str,
    draft: str,
    *,
    inflate: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    num_devices: int | None = None,
    ranks: int = 1,
    max_sequences: int = 1,
    minutes: float | None = None,
    accept_noise: bool = False,
    stages: Stages = silent,
) -> Profile:
    """Measure how long forwards of a model pair take on this machine.

    Every kind of forward is timed on one device, on two, and so on, with the other model idle and busy. A pair of
    small models takes a few minutes, a slow one `minutes`.

    Parameters
    ----------
    target, draft : str
        Hugging Face directories, or the bundled `demo/target` and `demo/draft`.
    inflate : str, optional
        Expand the target to a larger shape, such as `layers=24,hidden=1024`, to measure at a realistic size.
    dtype : str
        `float32` (or `fp32`), `bfloat16` (`bf16`), on a GPU also `float16`, `fp8` and `int4`; or `auto`: bfloat16 on a
        GPU, and on a CPU the faster of float32 and bfloat16, which is measured.
    device : str
        `cpu` or `cuda`.
    num_devices : int, optional
        Number of cores or GPUs to measure on; all of this machine's if not given.
    ranks : int
        On a CPU, also measure tensor parallelism over this many processes.
    max_sequences : int
        Also measure what each sequence adds to a step of up to this many, at most 64.
    minutes : float, optional
        Measure no longer: with slow models, fewer passes, contexts and repetitions. 10 by default, on GPUs 5.
    accept_noise : bool
        Return a profile of GPUs even if its measurements contradict each other. On a CPU that is only a warning of the
        logger `swiftspec`.
    stages : Stages
        Receives progress reports.

    Returns
    -------
    Profile
        Latencies in seconds.

    Raises
    ------
    ValueError
        If a model cannot be read, the two do not share a vocabulary, a device is not there, or measurements on a GPU
        contradict each other.

    Examples
    --------
    >>> profile = swiftspec.profile("demo/target", "demo/draft", dtype="fp32", num_devices=1)
    >>> profile.save("measured.json")
    """
    from swiftspec.profiler.pair import measure_pair

    return measure_pair(
        target,
        draft,
        inflate=inflate,
        dtype=dtype,
        device=device,
        num_devices=num_devices,
        ranks=ranks,
        max_sequences=max_sequences,
        minutes=minutes,
        accept_noise=accept_noise,
        stages=stages,
    ).profile


def trace(
    target: str,
    draft: str,
    prompts: Prompts,
    *,
    inflate: str | None = None,
    dtype: str = "auto",
    max_new_tokens: int = 128,
    limit: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    stages: Stages = silent,
) -> AcceptanceTrace:
    """Record how well a draft model guesses the target's output on some prompts.

    The target continues each prompt; at every output token the draft's best candidates are recorded, so that
    the simulator can replay any policy on the same text. So are the experts of a target that has any.

    Parameters
    ----------
    target, draft, inflate, dtype
        As for `profile`.
    prompts : sequence of str, or path
        Texts, or a file of JSON lines with a field `prompt`.
    max_new_tokens : int
        Output tokens per prompt, at most.
    limit : int, optional
        Use this many prompts, spread evenly over those given. By default all, or of slow models as many as ten minutes
        allow, with a warning of the logger `swiftspec`.
    temperature, top_p, top_k, seed
        As of `Engine.generate`; greedy by default. Drafts guess with the noise of the target's draws, as the engine
        does. The seed is that of the first prompt; each further one has the next.
    stages : Stages
        Receives progress reports.

    Returns
    -------
    AcceptanceTrace

    Raises
    ------
    ValueError
        If a model or the file cannot be read, or a prompt is empty or longer than the target's context; or if a
        parameter of sampling is out of range.

    Examples
    --------
    >>> texts = ["def add(a, b):", "import os"]
    >>> trace = swiftspec.trace("demo/target", "demo/draft", texts, dtype="fp32", max_new_tokens=16)
    >>> trace.rank_acceptance(2)  # share of tokens that are the draft's first choice, and its second
    [0..., 0...]
    """
    texts = read_texts(prompts, limit)
    from swiftspec.engine.tasks import encoded_prompts
    from swiftspec.profiler.acceptance import record_trace
    from swiftspec.profiler.pair import resolve

    sampling = SamplingParams.checked(
        {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}, source="sampling"
    )
    pair = resolve(target=target, draft=draft, inflate=inflate, dtype=dtype)
    with stages("trace") as progress:
        return record_trace(
            target=pair.target,
            draft=pair.draft,
            prompts=encoded_prompts(texts, model=pair.target.model),
            max_new_tokens=max_new_tokens,
            num_candidates=NUM_CANDIDATES,
            num_threads=num_devices_here("cpu"),
            progress=progress,
            sampling=sampling,
            stop=time_limit() if limit is None else lambda: False,
        )
