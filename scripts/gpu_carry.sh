#!/usr/bin/env bash
# Makes a folder for scripts/gpu_runs.sh on a machine without a network: packages, compiled kernels, the commit.
#
#   scripts/gpu_carry.sh [--python-version 3.12] [--platform manylinux_2_28_x86_64] [--only wheels,kernels,commit]
#                        [--kernels decoding,tests,tuning]
#
# wheels/         packages that a machine with torch, Triton, NumPy, transformers and pytest may lack, in the versions of
#                 constraints.txt
# kernels.tar.xz  Triton's cache. $PYTHON's Triton compiles it, which takes minutes; a machine with another version of
#                 Triton finds nothing in it
# trace.npz       yours, if you put one there: swiftspec trace --target demo/target --draft demo/draft --dtype bf16 ..
# commit          the commit that a run's records name; rewrite it with `--only commit` after each commit
#
# The folder is $CARRIED, by default gpu-carried, at most 30 MB.

set -euo pipefail

python_version=3.12 platform=manylinux_2_28_x86_64 only=,wheels,kernels,commit, kinds=decoding,tests,tuning
while (($#)); do
    case $1 in
        --python-version) python_version=${2:?}; shift 2 ;;
        --platform) platform=${2:?}; shift 2 ;;
        --kernels) kinds=${2:?}; shift 2 ;;
        --only) only=,${2:?},; shift 2 ;;
        *) echo "gpu_carry.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
for part in ${only//,/ }; do
    case $part in
        wheels | kernels | commit) ;;
        *) echo "gpu_carry.sh: --only has $part; expected wheels, kernels or commit" >&2; exit 2 ;;
    esac
done
cd "$(dirname "$0")/.."
carried=$(realpath -m "${CARRIED:-gpu-carried}")
python=${PYTHON:-python3}
mkdir -p "$carried"

if [[ $only == *,wheels,* ]]; then
    rm -rf "$carried/wheels"
    pins=()
    for name in pydantic pyzmq simpy typer; do pins+=("$(grep "^$name==" constraints.txt)"); done
    # Pydantic's dependencies, in the versions installed here. All other dependencies of these four come with torch,
    # transformers or pytest.
    for name in pydantic-core annotated-types typing-inspection typing-extensions; do
        pins+=("$name==$("$python" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$name")")
    done
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version "$python_version" \
        --implementation cp --platform "$platform" --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --dest "$carried/wheels" "${pins[@]}"
fi
if [[ $only == *,kernels,* ]]; then
    cache=$(mktemp -d)
    trap 'rm -rf "$cache"' EXIT
    TRITON_CACHE_DIR=$cache TRITON_STORE_BINARY_ONLY=1 PYTHONPATH=$PWD "$python" -m tools.baking \
        --inflate "$(sed -n 's/^shape=//p' scripts/gpu_runs.sh)" --only "$kinds" \
        tests/kernels/test_*.py tests/engine/model/test_static_kernels.py
    PYTHONPATH=$PWD "$python" -m tools.kernel_cache pack "$cache" "$carried/kernels.tar.xz"
fi
[[ $only != *,commit,* ]] || git describe --always --dirty >"$carried/commit"
size_mb=$(du -sm "$carried" | cut -f1)
echo "$carried: $size_mb MB"
((size_mb <= 30)) || { echo "gpu_carry.sh: $carried holds $size_mb MB; expected at most 30" >&2; exit 1; }
