"""Verbs of the server. Each imports its module when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from swiftspec.cli import flags

__all__ = ["loadtest", "serve"]


def serve(
    *,
    plan: flags.PlanFile,
    policy: Annotated[str | None, typer.Option(metavar="NAME", help="One of the plan's alternatives.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is every one of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    model_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name for clients. Default: as the plan names it.")
    ] = None,
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR",
            help="Serve a fine-tune or LoRA adapter of the target, too; requests name it as `model`. May be repeated.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line; a request needs one of them.")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Without keys: answer under this DNS name, too; otherwise under addresses and local names only. "
            "May be repeated.",
        ),
    ] = None,
    chat_template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Jinja template of conversations, instead of the model's.")
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(min=2, metavar="N", help="Tokens of the longest request. Default: the model's, at most 4096."),
    ] = None,
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Requests that run at once.")] = 8,
    max_waiting: Annotated[
        int, typer.Option(min=0, metavar="N", help="Requests that wait at most; more are refused with 429.")
    ] = 256,
    kv_blocks: flags.KvBlocks = None,
    control: flags.Control = None,
    earlier_outputs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Suffix decoding: search the last N outputs, too, whoever asked for them. Default: as planned, none.",
        ),
    ] = None,
    ray: flags.Ray = None,
    request_timeout_s: Annotated[
        float | None, typer.Option(min=0.001, metavar="S", help="Longest time of a request. Default: none.")
    ] = None,
    send_timeout_s: Annotated[
        float, typer.Option(min=0.1, metavar="S", help="A client that takes nothing for so long is given up.")
    ] = 30.0,
    drain_s: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="Time that requests have to end after SIGTERM or Ctrl-C.")
    ] = 30.0,
    max_restarts: Annotated[
        int, typer.Option(min=0, metavar="N", help="How often within an hour a draft that died is restarted.")
    ] = 3,
    keep_timelines: Annotated[
        int,
        typer.Option(
            min=0, max=100_000, metavar="N", help="Keep the last N requests' timelines, for `validate --url`; no text."
        ),
    ] = 0,
    json: flags.Json = None,
) -> None:
    """Serve a plan to clients of OpenAI's API.

    Completions, chat completions, models, health, metrics for Prometheus, and a page that shows what runs.

    \b
    Examples:
      swiftspec serve --plan plan.json
      curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
          -d '{"prompt": "def main():", "max_tokens": 64}'
      swiftspec serve --plan plan.json --tenant tests=tests-finetune --tenant sql=sql-lora
    """
    from swiftspec.cli.serve import serve as run

    run(
        plan=plan,
        policy=policy,
        host=host,
        port=port,
        model_name=model_name,
        tenants=tenant or (),
        api_key_file=api_key_file,
        allowed_hosts=allowed_host or (),
        chat_template=chat_template,
        engine_options={
            "max_context": max_context,
            "max_running": max_running,
            "max_waiting": max_waiting,
            "kv_blocks": kv_blocks,
            "control": control,
            "earlier_outputs": earlier_outputs,
            "max_restarts": max_restarts,
        },
        request_timeout_s=request_timeout_s,
        send_timeout_s=send_timeout_s,
        drain_s=drain_s,
        keep_timelines=keep_timelines,
        ray=ray,
        json_path=json,
    )


def loadtest(
    *,
    url: Annotated[str, typer.Option(metavar="URL", help="Address of a server of OpenAI's API.")],
    workload: Annotated[Path, typer.Option(metavar="FILE", help="Requests to send; `swiftspec workload` writes it.")],
    prompts: flags.Prompts,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key to send; the first one of the file.")
    ] = None,
    limit: flags.Limit = None,
    seed: flags.Seed = 0,
    json: flags.Json = None,
) -> None:
    """Send a workload to a server, and measure what its clients see.

    Works with `swiftspec serve` and with vLLM. Requests are greedy, and as long as the workload says.

    \b
    Example:
      swiftspec loadtest --url http://127.0.0.1:8000 --workload workload.json --prompts prompts.jsonl \\
          --json loadtest.json
    """
    from swiftspec.cli.load_test import load_test

    load_test(
        url=url,
        workload=workload,
        prompts=prompts,
        api_key_file=api_key_file,
        limit=limit,
        seed=seed,
        json_path=json,
    )
