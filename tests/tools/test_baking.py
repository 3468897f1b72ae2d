"""Kernels compiled ahead without a GPU, into a cache that is found by other processes and on other machines."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

from swiftspec.engine.model.gpu.kv_cache import CAPTURE_SIZES
from swiftspec.kernels.tables import Product
from tools.baking import decodings, tuning_launches
from tools.tuning import candidates, products_of

SCRIPT = """
import os
import shutil
from pathlib import Path

from triton import knobs

from tools.compiling import compiling
from tools.baking import Decoding, compile_all
from tools.kernel_cache import pack, unpack
from tests.engine.shapes import small_spec


def kernels(folder):
    # With their times, so that a kernel that is compiled again is another one.
    return sorted((path.stem, path.stat().st_mtime_ns) for path in folder.rglob("*.cubin"))


if __name__ == "__main__":
    job = Decoding(small_spec(hidden_size=64, head_dim=16, intermediate_size=64), "bfloat16", 2, pdl=True)
    baked, moved = Path(os.environ["TRITON_CACHE_DIR"]), Path("moved")
    assert compile_all([job], num_processes=1) == 1
    moved.mkdir()
    assert pack(baked, Path("kernels.tar.xz")) == unpack(moved.resolve(), Path("kernels.tar.xz")) == len(kernels(baked))
    shutil.rmtree(baked)
    compiled = kernels(moved)
    knobs.cache.dir = str(moved.resolve())
    with compiling(inspect=False):
        job.compile()  # in another process than the first time, and elsewhere
    assert kernels(moved) == compiled, "what was compiled was not found"
    print(*(name for name, _ in compiled))
"""


OUT_OF_TIME = """
import time
from pathlib import Path

from tools.baking import Tests, compile_all


class Slow(Tests):
    def compile(self):
        time.sleep(0.5)
        Path(self.path).touch()


if __name__ == "__main__":
    try:
        compile_all([Slow(f"{number}.done") for number in range(100)], num_processes=1, deadline_s=1.0)
    except TimeoutError:
        done = len(list(Path().glob("*.done")))
        time.sleep(2.0)
        print(done, len(list(Path().glob("*.done"))))
"""


def output_of(text: str, folder: Path) -> str:
    """Output of a script that compiles kernels in its own processes."""
    script = folder / "script.py"
    script.write_text(text)
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_was_compiled_and_moved_is_found_by_another_process(tmp_path: Path) -> None:
    expected = {"_skinny_gemm_kernel", "_tree_attention_kernel", "_rms_norm_kernel", "_rope_kv_write_kernel"}
    assert expected <= set(output_of(SCRIPT, tmp_path).split())


def test_nothing_is_being_compiled_any_more_once_time_is_up(tmp_path: Path) -> None:
    """Measurements that follow have the machine to themselves."""
    done, later = map(int, output_of(OUT_OF_TIME, tmp_path).split())
    assert 0 < done == later < 100


def test_every_candidate_has_a_launch_and_none_has_two() -> None:
    products = products_of()
    launches = tuning_launches(products, (8, 4))
    assert {launch.config for launch in launches} == {config for each in products for config in candidates(8, each)} | {
        config for each in products for config in candidates(4, each)
    }
    assert len(launches) < sum(len(candidates(m, each)) for each in products for m in (8, 4)) / 2


def test_int4_has_a_kernel_of_its_own_where_its_blocks_are_a_multiple_of_16() -> None:
    products = Product(4096, 4096, "int4"), Product(4096, 5120, "int4")
    launches = tuning_launches(products, (8,))
    shared = set.intersection(*(set(candidates(8, product)) for product in products))
    assert shared
    assert {(launch.config, launch.product) for launch in launches} >= set(itertools.product(shared, products))


def test_forwards_of_every_format_and_number_of_rows_are_compiled() -> None:
    found = list(decodings("layers=16,hidden=512"))
    formats = ("bfloat16", "fp8", "int4", "float32")
    assert {(each.dtype, each.num_rows) for each in found if each.pdl} == set(itertools.product(formats, CAPTURE_SIZES))


def test_the_pair_that_is_compared_with_the_cpu_is_compiled_as_it_is() -> None:
    found = [each.spec.hidden_size for each in decodings("layers=16,hidden=512") if each.dtype == "float32"]
    assert set(found) == {128, 256}
