"""Options of the verbs of a plan, which is made, simulated, used, or written as a command; and of the demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swiftspec.cli import flags
from swiftspec.cli.flags import flag
from swiftspec.cli.settings import PLANNER, SERVER, SIMULATOR, listed


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """Choose policy, tree shape and split, and predict the speed.

    For this machine, give a profile and a trace; for other hardware, its name and those of the models.

    \b
    Examples:
      swiftspec plan --target demo/target --draft demo/draft --inflate layers=12,hidden=512 \\
          --profile profile.json --trace trace.npz --devices 2 --out plan.json
      swiftspec plan --target llama-3-70b --draft llama-3.2-3b --device h800-sxm --devices 8 \\
          --dtype int4 --out plan.json --report plan.html
      swiftspec plan --target llama-3.3-70b --draft eagle3 --device h100 --devices 8 --dtype fp8 \\
          --engine vllm@0.15 --load closed:32 --limit ttft=500,tpot=20,p=95 --out plan.json
      swiftspec plan --target llama-3.3-70b --device h100 --dtype fp8 --load closed:1,4,16,64
      swiftspec plan --target llama-3-70b --draft llama-3.2-1b --device h100 --fleet 64 \\
          --load workload.json --limit ttft=500,tpot=30 --set price_per_hour=2.5 --out fleet.json
    """

    target: str | None = flag("M", "Target: a directory or, with --device, a name.")
    draft: list[str] | None = flag(
        "M",
        "Draft: as for the target. With --device, repeat it to compare several; pard:NAME is a parallel one, "
        "and eagle3, mtp, p-eagle, dflash and dspark are heads.",
    )
    out: Path | None = flag(
        "FILE",
        "Where to write the plan. With --device, its profile and trace are saved next to X.json as "
        "X.profile.json and X.trace.npz.",
    )
    profile: Path | None = flag("FILE", "A profile of this machine.")
    trace: Path | None = flag("FILE", "A trace of this pair; with --device, of text like yours.")
    device: str | None = flag("NAME", "Plan for this device, e.g. h100 or b200: see `swiftspec list devices`.")
    devices: int | None = flag("", "Devices for the pair. Default: those profiled; with --device, 8.", min=1)
    draft_device: str | None = flag(
        "NAME|FILE[:N]",
        "With another engine: N further devices, one by default, that only a draft server uses: by name with "
        "--device, otherwise a profile of them.",
    )
    dtype: str | None = flag(
        "FORMAT[,FORMAT]",
        "With --device: weights of the target and of the draft, bf16 (default), fp8, int8, int4, mxfp4 or "
        "nvfp4. Otherwise the profile's.",
    )
    inflate: flags.Inflate = None
    engine: flags.Engine = None
    settings: list[str] | None = flags.settings(
        f"{listed(PLANNER)}. Of another --engine, its limits by its own words, as max_num_seqs=128,block_size=32."
    )
    op_tables: Path | None = flag("FILE", "With --device: op tables that `swiftspec import` wrote.")
    prompt_tokens: int | None = flag("N", "Tokens of a prompt. Default: the trace's, or 512.", min=1)
    output_tokens: int | None = flag("N", "Tokens of an output. Default: the trace's, or 256.", min=1)
    dataset: str | None = flag(
        "NAME",
        "With --device: acceptance on this data set, or on a class of text: code, edits, mathematics, chat, "
        "summaries, random. Default: on all.",
    )
    acceptance: list[str] | None = flag(
        "RATE",
        "With --device: measured acceptance rate, one for each --draft, or `published`. 0.75 of single draft "
        "tokens, 0.44@5 on average over chains of 5, 0.8,0.7,0.6 by position (vLLM logs both). Or tokens per "
        "round: 2.9@5 of chains of 5, 3.4@3-4-8 of trees of 3 steps, top-k 4 and 8 rows. Or a file of `swiftspec "
        "import`.",
    )
    load: str | None = flag(
        "FILE|PROCESS",
        "Plan for many requests: a file of `swiftspec workload`, closed:CLIENTS or poisson:RATE. Several "
        "numbers, as closed:1,4,16,64, or no --draft compare drafts at each, and make no plan.",
    )
    limit: list[str] | None = flag(
        "NAME=VALUE,..",
        "Limits to keep: ttft=MS, tpot=MS, of each request of a load, or the means of one user; p=PERCENT of "
        "a load's requests; speed=TOKENS_PER_S at least; devices=N at most.",
    )
    fleet: int | None = flag(
        "N",
        "With --load: the fewest of N devices on which equal replicas, of at most --devices each, keep the "
        "limits together, for 95 percent of the requests if p does not say otherwise.",
        min=1,
    )
    objective: Literal["tokens-per-s", "tpot", "tpot-p95", "tokens-per-gpu", "cost", "devices"] | None = flag(
        "", "What to optimise. Default: tokens-per-s; with a speed to reach, devices; of a load goodput."
    )
    policy: str = flag(
        "auto|all|NAME",
        "Search the policies that have been near the best (auto), all, or one beside autoregressive decoding.",
        default="auto",
    )
    split: str | None = flag("T+D", "Only this split: devices of the target and of the draft, 4+4, or 8 shared.")
    degrees: str | None = flag(
        "N,N,..", "TP degrees to consider, e.g. 1,2,4,8. Default: those that the engine can run."
    )
    layout: str | None = flag(
        "dpNtpMepE",
        "With --device: how N x M devices share a target with experts. tp8 divides all of it (any number of "
        "devices does by default); dp8 has attention in data parallel; ep8 after either puts whole experts on "
        "each device, as dp8ep8.",
    )
    seed: flags.Seed = 0
    jobs: str = flag(
        "N|ray:N|dask:N",
        "Simulation processes, here or on a Ray or Dask cluster that runs; -1, ray and dask: one per core.",
        default="-1",
    )
    report: Path | None = flag("FILE", "Write a report of the plan: one HTML file.")
    plan: Path | None = flag("FILE", "With --report: of this plan, without a search.")
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """Replay a plan in simulated time, alone or under load.

    \b
    Examples:
      swiftspec simulate --plan plan.json --timeline simulated.json
      swiftspec simulate --plan plan.json --json - | jq .metrics.tpot_s
      swiftspec simulate --plan plan.json --load workload.json --set max_running=16
    """

    plan: flags.PlanFile
    policy: flags.PolicyName = None
    max_new_tokens: flags.NewTokens = None
    load: flags.Load = None
    settings: list[str] | None = flags.settings(
        f"With --load: {listed(SIMULATOR)}. Of another --engine, its limits by its own words."
    )
    engine: flags.Engine = None
    timeline: flags.Timeline = None
    seed: flags.Seed = 0
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Execute a plan. Text goes to stdout as it is committed, figures to stderr.

    With --engine, or a plan on its profile: by that engine's server, which is started and ended.

    \b
    Examples:
      swiftspec run --plan plan.json --prompt "def main():" --timeline run.json
      swiftspec run --plan plan.json --prompt "def main():" --engine vllm
    """

    plan: Path | None = flag("FILE", "A plan, as `swiftspec plan` wrote it.  [required]")
    prompt: str | None = flag("TEXT", "A text to continue.")
    prompts: Path | None = flag("FILE", "Several prompts: JSON lines with `prompt`, or Spec-Bench `turns`.")
    policy: flags.PolicyName = None
    max_new_tokens: flags.NewTokens = None
    temperature: float | None = flag("", "0 is greedy. Default, as of top-p and top-k: as in the plan's trace.")
    top_p: float | None = flag("", flags.TOP_P)
    top_k: int | None = flag("", flags.TOP_K)
    seed: flags.Seed = 0
    tenant: str | None = flag("DIR", "Decode with this fine-tune or LoRA adapter of the target.")
    acceptance_method: Literal["follow", "residual"] = flag(
        "",
        "follow: accept a draft token if the target samples the same one; drafts guess with its noise. "
        "residual: rejection sampling, which accepts a few per cent more of a chain, and less of a tree.",
        default="follow",
    )
    engine: flags.Engine = None
    python: flags.EnginePython = None
    server_args: flags.ServerArgs = None
    ray: flags.Ray = None
    secret: Path | None = flag("FILE", "Under torchrun: secret shared by its processes, from --new-secret.")
    new_secret: Path | None = flag("FILE", "Write a secret for torchrun's processes, and do nothing else.")
    timeline: flags.Timeline = None
    plot: flags.Plot = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """Serve a plan to clients of OpenAI's API.

    Completions, chat completions, models, health, metrics for Prometheus, and a page that shows what runs.

    \b
    Examples:
      swiftspec serve --plan plan.json
      curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
          -d '{"prompt": "def main():", "max_tokens": 64}'
      swiftspec serve --plan plan.json --tenant tests=tests-finetune --tenant sql=sql-lora
      swiftspec serve --plan plan.json --set max_running=64,max_context=8192
      swiftspec serve --plan plan.json --engine vllm --python vllm-env/bin/python
      swiftspec serve --role draft --draft demo/draft --address ipc:///tmp/draft --set num_draft_tokens=6
    """

    plan: Path | None = flag("FILE", "A plan, as `swiftspec plan` wrote it.  [required]")
    role: Literal["draft"] | None = flag(
        "", "Only draft, without a plan, for a vLLM server with `swiftspec.drafter.Drafter`."
    )
    draft: str | None = flag("M", "With --role: the draft.")
    address: str | None = flag("A", "With --role: ipc://FILE, or tcp://HOST:PORT with --secret.")
    devices: int | None = flag("N", "With --role: cores. Default: 1.", min=1)
    secret: Path | None = flag("FILE", "With --role: from `swiftspec run --new-secret`.")
    policy: flags.PolicyName = None
    host: str = flag("", "Address to listen on; 0.0.0.0 is every one of this machine's.", default="127.0.0.1")
    port: int = flag("", "Port to listen on; 0 takes a free one.", default=8000, min=0, max=65535)
    model_name: str | None = flag("NAME", "The model's name for clients. Default: as the plan names it.")
    tenant: list[str] | None = flag(
        "NAME=DIR",
        "Serve a fine-tune or LoRA adapter of the target, too; requests name it as `model`. May be repeated.",
    )
    api_key_file: Path | None = flag("FILE", "Keys, one a line; a request needs one of them.")
    allowed_host: list[str] | None = flag(
        "NAME",
        "Without keys: answer under this DNS name, too; otherwise under addresses and local names only. "
        "May be repeated.",
    )
    chat_template: Path | None = flag("FILE", "Jinja template of conversations, instead of the model's.")
    settings: list[str] | None = flags.settings(f"{listed(SERVER)}.")
    engine: flags.Engine = None
    python: flags.EnginePython = None
    server_args: flags.ServerArgs = None
    ray: flags.Ray = None
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFlags:
    """Write a plan as another engine's command line.

    Lists what that engine cannot express, and exports the nearest plan that it can.

    \b
    Examples:
      swiftspec export --plan plan.json --engine vllm
      swiftspec export --plan plan.json --engine sglang --synthetic --out serve.sh
    """

    plan: flags.PlanFile
    engine: str | None = flag("NAME", "Whose command, e.g. vllm or llamacpp. Default: the plan's engine.")
    policy: flags.PolicyName = None
    synthetic: bool = flag(
        "", "Let the engine imitate the traced acceptance, without draft weights.", "--synthetic", default=False
    )
    max_running: int | None = flag(
        "N", "Requests at once, with draft tokens by batch size. Default: as planned.", min=1
    )
    draft: str | None = flag("M", "The draft's checkpoint, if the plan names none, e.g. of a head.")
    out: Path | None = flag("FILE", "Also write the command as a shell script.")
    json: flags.Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFlags:
    """Do all of this on the bundled pair, in a few minutes.

    On a slow machine it measures less. At the end it says how long everything took, and whether the machine was busy.

    \b
    Examples:
      swiftspec demo --dir swiftspec-demo --plot
      swiftspec demo --budget-minutes 3
    """

    directory: Path = flag("DIR", "Folder for the files.", "--dir", default=Path("swiftspec-demo"))
    devices: int | None = flag("", "Cores. Default: two, if there are.", min=1)
    budget_minutes: float = flag("MIN", "Measure less if that is needed to end in about this time.", default=8.0, min=1)
    plot: bool = flag("", "Also draw figures, in the same folder.", "--plot", default=False)
    json: flags.Json = None
