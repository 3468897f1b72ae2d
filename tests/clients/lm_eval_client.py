"""lm-eval against a running server, and the same answers scored one by one.

lm-eval sends token ids with `echo`, `max_tokens` 1 and `logprobs` 1, and leaves out the last token's log-prob, as it is
that of the token written. It asks nothing of the hub: the questions are in `questions`, the tokenizer beside the model.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from swiftspec.cli import console
from swiftspec.loadtest import ServerClient
from swiftspec.studies.atts.servers import scored_prompt

QUESTIONS = Path(__file__).parent / "questions"
TASK = "python_lines"
WITHIN = 1e-3  # of a log-likelihood
NUM_CLIENTS = 4


class Answered(NamedTuple):
    """A question as lm-eval has scored it: log-likelihoods of its ends, and whether the right one is the likeliest."""

    begin: str
    ends: tuple[str, ...]
    right: int
    scores: tuple[float, ...]
    is_right: bool


def run_lm_eval(python: Path, url: str, tokenizer: Path) -> dict[str, float]:
    """AssertionError if lm-eval's log-likelihoods or accuracy are not those of the server's scores. No figures."""
    folder = python.parents[1]
    client = ServerClient(url)
    out = folder / "results"
    shutil.rmtree(out, ignore_errors=True)
    model = client.model()
    options = {
        "model": "local-completions",
        "model_args": f"model={model},base_url={url}/v1/completions,num_concurrent={NUM_CLIENTS},"
        f"tokenizer={tokenizer},tokenizer_backend=huggingface",
        "batch_size": "1",
        "tasks": TASK,
        "include_path": ".",
        "output_path": str(out),
    }
    command = [str(python.with_name("lm_eval")), "run", "--log_samples"]
    command += [part for name, value in options.items() for part in (f"--{name}", value)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    subprocess.run(command, cwd=QUESTIONS, env=os.environ | offline, check=True)
    answered = list(answers(out))
    ours = [tuple(score(client, each.begin, end, model=model) for end in each.ends) for each in answered]
    accuracy = share([each.is_right for each in answered])
    expected = share([scores.index(max(scores)) == each.right for each, scores in zip(answered, ours, strict=True)])
    apart = max(
        abs(theirs - own)
        for each, scores in zip(answered, ours, strict=True)
        for theirs, own in zip(each.scores, scores, strict=True)
    )
    console.say(
        f"lm-eval: {len(answered)} questions, accuracy {accuracy:.3f}, here {expected:.3f}; "
        f"log-likelihoods differ by {apart:.1g} at most"
    )
    assert accuracy == expected
    assert apart <= WITHIN
    return {}


def answers(out: Path) -> Iterator[Answered]:
    """What lm-eval has logged."""
    (log,) = out.rglob(f"samples_{TASK}_*.jsonl")
    for line in log.read_text().splitlines():
        sample = json.loads(line)
        asked = sample["doc"]
        scores = tuple(float(score) for score, _ in sample["filtered_resps"])
        yield Answered(asked["begin"], tuple(asked["ends"]), asked["right"], scores, sample["acc"] == 1.0)


def score(client: ServerClient, begin: str, end: str, *, model: str) -> float:
    """Log-likelihood of an end of a text, as the server scores the prompt of both: `echo` with `max_tokens` 0."""
    num_before = len(client.tokenize(begin, model=model))
    return sum(log_prob or 0.0 for _, log_prob in scored_prompt(client, begin + end, model=model)[num_before:])


def share(held: Sequence[bool]) -> float:
    """Share of what holds."""
    return sum(held) / len(held)
