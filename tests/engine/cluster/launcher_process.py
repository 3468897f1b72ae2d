"""A launcher as a program: `python -m tests.engine.cluster.launcher_process ADDRESS TARGET DRAFT`.

It prints where hosts reach it, then `ready`; and for ever the output of one request: tokens, and losses of the draft.
"""

import sys

from swiftspec.engine.cluster.executor import ClusterExecutor
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from tests.engine.cluster.slots import SLOTS
from tests.engine.conftest import start_engine
from tests.engine.victims import PATIENCE_S, generate

if __name__ == "__main__":
    address, *pair = sys.argv[1:]
    target, draft = (ModelRef.model_validate_json(reference) for reference in pair)
    with ClusterExecutor(SLOTS, device="cpu", address=address) as executor:
        print(*executor.launcher, executor.key.hex(), flush=True)
        executor.await_hosts(30.0)
        with start_engine((target, draft), Layout.DISAGGREGATED, executor=executor, patience_s=PATIENCE_S) as engine:
            print("ready", flush=True)
            while True:
                generation = generate(engine, SwiftSpec())
                print(generation.losses, *generation.tokens, flush=True)
