"""Options of the verbs that use a plan, to decode, to serve, or as another engine's command; and of the demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swiftspec.cli import flags
from swiftspec.cli.flags import flag
from swiftspec.cli.settings import SERVER, listed


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
