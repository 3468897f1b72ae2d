"""Worker: this project's speculation.

python -m tools.real_size.ours_speculation TARGET DRAFT DTYPE PROMPTS TOKENS K
"""

import json
import sys
from pathlib import Path

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.placement import Placement
from swiftspec.files.document import ModelRef
from swiftspec.machine import cores_here
from swiftspec.policies import Layout, Request, make_policy
from swiftspec.policies.effects import Role

MAX_CONTEXT = 1024


def main() -> None:
    target, draft, dtype, prompts, new_tokens, num_draft_tokens = sys.argv[1:]
    requests = [
        Request(prompt=tuple(prompt), max_new_tokens=int(new_tokens))
        for prompt in json.loads(Path(prompts).read_text())
    ]
    models, policy = {Role.TARGET: ModelRef(model=target, dtype=dtype)}, make_policy("autoregressive")
    groups, layout = {Role.TARGET: tuple(range(len(cores_here())))}, Layout.TARGET_ONLY
    if count := int(num_draft_tokens):
        models[Role.DRAFT] = ModelRef(model=draft, dtype=dtype)
        policy, layout = make_policy("serial_chain", num_draft_tokens=count), Layout.COLOCATED
        groups[Role.DRAFT] = groups[Role.TARGET]
    with Launcher(models, Placement(groups=groups), layout=layout, max_context=MAX_CONTEXT) as engine:
        for _ in range(3):
            timelines = [
                engine.generate(policy, request, request_id="", sampler=Sampler()).timeline for request in requests
            ]
            seconds, tokens = (sum(getattr(one, name) for one in timelines) for name in ("e2e_s", "num_tokens"))
            print(json.dumps({"tokens_per_s": tokens / seconds}), flush=True)


if __name__ == "__main__":
    main()
