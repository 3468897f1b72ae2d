"""Options of the verbs that use a plan, to decode, to serve, or as another engine's command; and of the demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from swiftspec.cli import flags
from swiftspec.cli.settings import SERVER, listed

__all__ = ["DemoFlags", "ExportFlags", "RunFlags", "ServeFlags"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """Execute a plan. Text goes to stdout as it is committed, figures to stderr.

    With --engine, or a plan on its profile: by that engine's server, which is started and ended.

    \b
    Examples:
      swiftspec run --plan plan.json --prompt "def main():" --timeline run.json
      swiftspec run --plan plan.json --prompt "def main():" --engine vllm
    """

    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan, as `swiftspec plan` wrote it.  [required]")
    ] = None
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="A text to continue.")] = None
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Several prompts: JSON lines with `prompt`, or Spec-Bench `turns`."),
    ] = None
    policy: flags.PolicyName = None
    max_new_tokens: flags.NewTokens = None
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy. Default, as of top-p and top-k: as in the plan's trace.")
    ] = None
    top_p: Annotated[float | None, flags.TOP_P] = None
    top_k: Annotated[int | None, flags.TOP_K] = None
    seed: flags.Seed = 0
    tenant: Annotated[
        str | None, typer.Option(metavar="DIR", help="Decode with this fine-tune or LoRA adapter of the target.")
    ] = None
    acceptance_method: Annotated[
        Literal["follow", "residual"],
        typer.Option(
            help="follow: accept a draft token if the target samples the same one; drafts guess with its noise. "
            "residual: rejection sampling, which accepts a few per cent more of a chain, and less of a tree."
        ),
    ] = "follow"
    engine: flags.Engine = None
    python: flags.EnginePython = None
    server_args: flags.ServerArgs = None
    ray: flags.Ray = None
    secret: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Under torchrun: secret shared by its processes, from --new-secret."),
    ] = None
    new_secret: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a secret for torchrun's processes, and do nothing else."),
    ] = None
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

    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A plan, as `swiftspec plan` wrote it.  [required]")
    ] = None
    role: Annotated[
        Literal["draft"] | None,
        typer.Option(help="Only draft, without a plan, for a vLLM server with `swiftspec.drafter.Drafter`."),
    ] = None
    draft: Annotated[str | None, typer.Option(metavar="M", help="With --role: the draft.")] = None
    address: Annotated[
        str | None, typer.Option(metavar="A", help="With --role: ipc://FILE, or tcp://HOST:PORT with --secret.")
    ] = None
    devices: Annotated[int | None, typer.Option(min=1, metavar="N", help="With --role: cores. Default: 1.")] = None
    secret: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --role: from `swiftspec run --new-secret`.")
    ] = None
    policy: flags.PolicyName = None
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine's.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000
    model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name for clients. Default: as the plan names it.")
    ] = None
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="Serve a fine-tune or LoRA adapter of the target, too; requests name it as `model`. May be repeated.",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line; a request needs one of them.")
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Without keys: answer under this DNS name, too; otherwise under addresses and local names only. "
            "May be repeated.",
        ),
    ] = None
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Jinja template of conversations, instead of the model's.")
    ] = None
    settings: Annotated[list[str] | None, flags.settings(f"{listed(SERVER)}.")] = None
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
    engine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose command, e.g. vllm or llamacpp. Default: the plan's engine."),
    ] = None
    policy: flags.PolicyName = None
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Let the engine imitate the traced acceptance, without draft weights.")
    ] = False
    max_running: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Requests at once, with draft tokens by batch size. Default: as planned."
        ),
    ] = None
    draft: Annotated[
        str | None, typer.Option(metavar="M", help="The draft's checkpoint, if the plan names none, e.g. of a head.")
    ] = None
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the command as a shell script.")] = None
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

    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="Folder for the files.")] = Path(
        "swiftspec-demo"
    )
    devices: Annotated[int | None, typer.Option(min=1, help="Cores. Default: two, if there are.")] = None
    budget_minutes: Annotated[
        float,
        typer.Option(min=1, metavar="MIN", help="Measure less if that is needed to end in about this time."),
    ] = 8.0
    plot: Annotated[bool, typer.Option("--plot", help="Also draw figures, in the same folder.")] = False
    json: flags.Json = None
