"""Profiles of servers in the command line: what is wrong with them, and plans on one."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from swiftspec.engines import engine_named
from swiftspec.export import export_plan
from swiftspec.files.document import ModelRef
from tests.builders import constant_profile

Fails = Callable[..., str]
PAIR = ("--target", "demo/target", "--draft", "demo/draft", "--dtype", "fp32")


@contextmanager
def web_server(answers: dict[str, bytes]) -> Iterator[str]:
    """A server with these answers, and 404 elsewhere."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(200 if body else 404)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--engine", "swiftspec"), "it is this package's own"),
        (("--engine", "vlm"), "engine"),
        (("--engine", "vllm", "--device", "tpu"), "--device is tpu; expected cpu or cuda"),
        (("--engine", "sglang"), "SGLang is not known to run on CPUs"),
        (("--engine", "vllm", "--inflate", "layers=12"), "--inflate is layers=12"),
        (("--engine", "vllm", "--server-args", "--max-num-seqs many"), "max_num_seqs is 'many'"),
        (("--engine", "vllm", "--python", "/no/python"), "there is no program /no/python"),
        (("--url", "http://127.0.0.1:9", "--engine", "vllm"), "--url measures a server that runs"),
        (("--url", "http://127.0.0.1:9"), "no answer to /v1/models"),
    ],
)
def test_a_server_that_cannot_be_measured_is_one_sentence(
    fails: Fails, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    assert sentence in fails("profile", *PAIR, *options, "--out", tmp_path / "profile.json")


def test_a_server_without_metrics_or_with_others_is_refused(fails: Fails, tmp_path: Path) -> None:
    models = json.dumps({"data": [{"id": "m", "max_model_len": 512}]}).encode()
    out = ("--out", tmp_path / "profile.json")
    with web_server({"/v1/models": models}) as url:
        assert "/metrics answers 404" in fails("profile", *PAIR, "--url", url, *out)
    with web_server({"/v1/models": models, "/metrics": b"go_goroutines 7\n"}) as url:
        assert "no metric of a server that is known here" in fails("profile", *PAIR, "--url", url, *out)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for four clients on the profile of a vLLM."""
    pytest.importorskip("torch", reason="the extra `engine` is not installed")
    from tests.profiler.served.steps import known_profile

    folder = tmp_path_factory.mktemp("served")
    known_profile().save(folder / "profile.json")
    prompts = Path(__file__).parents[2] / "swiftspec/demo/prompts/trace.jsonl"
    trace = ("--prompts", prompts, "--num-prompts", 4, "--max-new-tokens", 32, "--out", folder / "trace.npz")
    lengths = ("--prompt-tokens", "fixed:80", "--output-tokens", "fixed:64", "--requests", 16)
    files = ("--profile", folder / "profile.json", "--trace", folder / "trace.npz", "--load", folder / "load.json")
    for arguments in (
        ("trace", *PAIR, *trace),
        ("workload", "--arrivals", "closed:4", *lengths, "--out", folder / "load.json"),
        ("plan", *PAIR, *files, "--jobs", 1, "--out", folder / "plan.json"),
    ):
        assert main([str(argument) for argument in arguments]) == 0
    return folder / "plan.json"


def test_a_plan_on_a_servers_profile_is_of_what_was_measured(planned: Path) -> None:
    plan = Plan.load(planned)
    assert plan.engine == "vllm"
    policies = {each.policy for each in (plan.chosen, *plan.alternatives)}
    assert policies == {"autoregressive", "prompt_lookup", "serial_chain"}
    assert plan.under_load is not None
    assert plan.under_load.engine.startswith("vLLM 0.32.0 with steps of at most 2048 tokens and 16 requests")


def test_it_is_exported_as_the_engines_command(planned: Path) -> None:
    exported = export_plan(Plan.load(planned), engine_named("vllm"), policy="serial_chain")
    assert exported.arguments[:2] == ("vllm", "serve")
    assert exported.configuration["method"] == "draft_model"
    assert not exported.is_other_plan


def test_simulation_of_the_plan_says_what_the_plan_says(planned: Path, tmp_path: Path) -> None:
    result = tmp_path / "simulated.json"
    load = ("--load", planned.with_name("load.json"))
    assert main(["simulate", "--plan", str(planned), *map(str, load), "--json", str(result)]) == 0
    under = Plan.load(planned).under_load
    assert under is not None
    simulated = json.loads(result.read_text())["metrics"]["e2el_s"]["mean"]
    assert simulated == pytest.approx(under.predictions[Plan.load(planned).chosen.policy].metrics.e2el_s.mean, rel=0.02)


@pytest.fixture(scope="module")
def drafted(planned: Path) -> Path:
    """The same beside a core for a draft server."""
    cores = constant_profile(expand_s=0.002, verify_s=1.0, prefill_s=0.004, degrees=(1,))
    draft = ModelRef(model="demo/draft", dtype="float32")
    cores.model_copy(update={"device": "cpu", "draft": draft, "num_devices": 1}).save(planned.with_name("cores.json"))
    out = planned.with_name("drafted.json")
    files = [
        (f"--{name}", planned.with_name(file)) for name, file in (("profile", "profile.json"), ("load", "load.json"))
    ]
    files += [("--trace", planned.with_name("trace.npz")), ("--draft-device", planned.with_name("cores.json"))]
    options = [str(word) for pair in files for word in pair]
    assert main(["plan", *map(str, PAIR), *options, "--jobs", "1", "--out", str(out)]) == 0
    return out


def test_a_draft_server_is_planned_exported_and_simulated_as_one_of_several(drafted: Path, tmp_path: Path) -> None:
    plan = Plan.load(drafted)
    assert {"serial_chain", "ssd", "swiftspec_chain"} <= plan.candidates.keys()
    assert (plan.draft_device, plan.candidates["ssd"].split) == ("cpu", "1+1")
    exported = export_plan(plan, engine_named("vllm"), policy="ssd")
    assert exported.draft_server[:4] == ("swiftspec", "serve", "--role", "draft")
    assert exported.draft_server[exported.draft_server.index("--devices") + 1] == "1"
    result, load = tmp_path / "simulated.json", drafted.with_name("load.json")
    words = ["simulate", "--plan", str(drafted), "--policy", "ssd", "--load", str(load), "--json", str(result)]
    assert main(words) == 0
    assert plan.under_load is not None
    simulated = json.loads(result.read_text())["metrics"]["e2el_s"]["mean"]
    assert simulated == pytest.approx(plan.under_load.predictions["ssd"].metrics.e2el_s.mean, rel=0.02)


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("cores.json:3", "cores.json is of 1 device"),
        ("profile.json", "expected a profile of swiftspec's own engine"),
        ("cores.json:many", "expected NAME or FILE, or either with :N behind it"),
        ("nothing.json", "nothing.json"),
    ],
)
def test_a_draft_device_that_is_none_is_one_sentence(
    fails: Fails, drafted: Path, tmp_path: Path, device: str, sentence: str
) -> None:
    here = ("--profile", drafted.with_name("profile.json"), "--trace", drafted.with_name("trace.npz"))
    said = fails("plan", *PAIR, *here, "--draft-device", drafted.with_name(device), "--out", tmp_path / "plan.json")
    assert sentence in said


def test_what_only_this_packages_server_has_is_refused(fails: Fails, planned: Path) -> None:
    assert "--tenant" in fails("serve", "--plan", planned, "--tenant", "a=b")
    assert "there is no program /no/python" in fails("serve", "--plan", planned, "--python", "/no/python")
    assert "--timeline" in fails("run", "--plan", planned, "--prompt", "a", "--timeline", planned.with_name("t.json"))
