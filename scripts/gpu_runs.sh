#!/usr/bin/env bash
# Checks swiftspec on a GPU, without a network, in three runs of at most eight minutes each.
#
#   scripts/gpu_runs.sh 1|2|3 [--dry-run] [--quick] [--only STEP[,STEP...]]
#
#   1  is it right?          tests on the GPU, forwards and greedy outputs against the CPU's, one forward's kernels
#   2  how fast is it?       tilings, attention, forwards and products against torch's
#   3  does a plan hold?     profile, trace, plan, validate; ways to share a GPU
#
# Every step has a time limit; one that fails is recorded, and the next one runs. After each step summary.txt and
# all.tar.gz (everything) are rewritten in $OUT, by default gpu-runs/N; records.jsonl grows while steps run. Steps that
# measure no time run side by side. Runs do not depend on each other. The folder of scripts/gpu_carry.sh is
# used if it exists: packages, compiled kernels, a trace, the commit. --quick measures tiny shapes, to see whether the
# steps run at all; --dry-run does so on a CPU. PYTHON chooses the interpreter. Exit code 0 if no step failed.

set -uo pipefail

usage="usage: gpu_runs.sh 1|2|3 [--dry-run] [--quick] [--only STEP[,STEP...]]"
run=${1:-} dry_run="" quick=() only=""
case $run in
    1) steps=is_right ;;
    2) steps=how_fast ;;
    3) steps=does_it_hold ;;
    *) echo "gpu_runs.sh: the run is '$run'; expected 1, 2 or 3; $usage" >&2; exit 2 ;;
esac
shift
while (($#)); do
    case $1 in
        --dry-run) dry_run=--dry-run quick=(--quick); shift ;;
        --quick) quick=(--quick); shift ;;
        --only) only=,${2:?--only needs names of steps},; shift 2 ;;
        *) echo "gpu_runs.sh: unknown option $1; $usage" >&2; exit 2 ;;
    esac
done

cd "$(dirname "$0")/.." || exit 2
out=$(realpath -m "${OUT:-gpu-runs/$run}")
carried=$(realpath -m "${CARRIED:-gpu-carried}")
python=${PYTHON:-python3}

# The bundled target, inflated to the size of an 8B model, with the same output. Contexts of 4000 tokens fit.
shape=layers=32,hidden=4096,heads=64,intermediate=14336,positions=5120
device=cuda inflate=(--inflate "$shape") deadline_s=480 workers=8
verbs=("$python" -m swiftspec)
if [[ $dry_run ]]; then
    device=cpu inflate=() deadline_s=3600 workers=0
    export TRITON_INTERPRET=1 OMP_NUM_THREADS=1
    # A profile of few samples takes seconds. It is enough to make a plan, but not a good one.
    brief="import sys; from swiftspec.profiler import steps; from swiftspec.cli.app import main"
    brief+="; steps.PASSES = steps.SWEEP_REPEATS = steps.REPEATS = 1; steps.HOST_TOKENS = 16; steps.CONTEXTS = (16, 64)"
    verbs=("$python" -c "$brief; sys.exit(main(sys.argv[1:]))")
fi

# Rewrite summary.txt and all.tar.gz from the results so far: the machine may be taken away during the next step.
gather() (
    flock 9 # closed below: a process that outlives the report would hold it
    if "$python" -m tools.gpu_report "$work" --run "$run" $dry_run >>"$out/log.txt" 2>&1 9>&-; then
        cp "$work/summary.txt" "$out"
    else
        echo "gpu_runs.sh: summary.txt could not be written; log.txt says why" | tee -a "$bare/failures" >&2
    fi
    tar --dereference --warning=no-file-changed -czf "$out/.all.tar.gz" -C "$work" . # steps beside it still write
    mv "$out/.all.tar.gz" "$out/all.tar.gz"
) 9>"$bare/gathering"

num_cached() { find "$TRITON_CACHE_DIR" -mindepth 1 -maxdepth 1 | wc -l; }

# step NAME LIMIT_S COMMAND...: run it, unless --only leaves it out; answer its exit code, 124 if it ran out of time
step() {
    local name=$1 limit_s=$2 left_s=$((deadline_s - SECONDS)) code=124 start_s=$SECONDS cached log=$work/$1.log
    shift 2
    [[ -z $only || $only == *,$name,* || $name == packages ]] || return 0
    [[ -z $dry_run ]] || limit_s=$((20 * limit_s)) # the CPU may be busy with other things
    ((limit_s <= left_s)) || limit_s=$left_s
    cached=$(num_cached)
    echo "== $name: $*" >"$log"
    if ((limit_s >= 2)); then
        # Not through a pipe: a process that outlives its step would keep it open, and the run would wait for it.
        timeout --kill-after=5 "$limit_s" "$@" >>"$log" 2>&1
        code=$?
    fi
    cat "$log" >>"$out/log.txt"
    echo "== $name: $((SECONDS - start_s)) s, exit code $code"
    ((code == 0 || code == 77)) || echo "$name" >>"$bare/failures"
    printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$limit_s" $((SECONDS - start_s)) "$code" $(($(num_cached) - cached)) \
        >>"$work/steps.tsv"
    gather
    return "$code"
}

# measure STEP LIMIT_S WHAT [OPTION...]
measure() {
    local name=$1 limit_s=$2
    shift 2
    step "$name" "$limit_s" "$python" -m tools.gpu_steps "$1" --device "$device" "${quick[@]}" \
        --out "$out/records.jsonl" --folder "$work" "${@:2}"
}

# tests NAME LIMIT_S [PYTEST_OPTION...]: -v prints each outcome at once, so that those before a time-out are known. What
# is only compiled for Hopper is tested without a GPU.
tests() {
    local name=$1 limit_s=$2
    shift 2
    step "$name" "$limit_s" "$python" -m pytest -v --tb=short --junitxml="$work/$name.xml" -p no:cacheprovider \
        -o addopts=--import-mode=importlib -o minversion=8 -k "not hopper" "$@"
}

# with TOOL ARGUMENT...: run the tool; 77, which is no failure, where the machine does not have it
with() {
    command -v "$1" >/dev/null && [[ $device == cuda ]] || { echo "no $1 here"; return 77; }
    "$@"
}
export -f with
export device

is_right() {
    local engine=(tests/engine/model/test_{cuda_graph,static_kernels,gpu_model}.py tests/tools/test_shared_process.py)
    local ranks=(tests/kernels/test_all_reduce.py tests/kernels/test_gemm_all_reduce.py tests/kernels/test_symmetric.py
        tests/kernels/test_round.py)
    local kernels=(tests/kernels "${ranks[@]/#/--ignore=}")
    if [[ $dry_run ]]; then
        engine=(tests/engine/model/test_cuda_graph.py) kernels=(tests/kernels/test_rms_norm.py)
        ranks=(tests/kernels/test_symmetric.py)
    fi
    measure decoder 60 decoder &
    measure greedy 90 greedy &
    tests tests-engine 90 "${engine[@]}" -n "$workers" &
    tests tests-kernels 120 "${kernels[@]}" -n "$workers" &
    wait
    measure limits 25 limits
    measure forward 50 forward --models 32B
    tests tests-ranks 50 "${ranks[@]}" -x
    step sanitizer 50 bash -c 'with compute-sanitizer --tool memcheck --error-exitcode 9 "$@"' - "$python" \
        -m tools.gpu_steps decoder --quick --out "$work/sanitizer.jsonl"
}

how_fast() {
    measure tune 130 tune --inflate "$shape"
    measure forward 100 forward --models 32B,8B --dtypes bfloat16,fp8,int4 --products tuned,default,torch
    measure attention 60 attention
    measure kernels 50 kernels
    # Only our own kernels, whose names begin with an underscore. ncu slows them down, so the times of
    # this step are not recorded.
    step counters 60 bash -c 'with ncu --clock-control none -k "regex:^_" -c 40 --csv --log-file "$0" "$@"' \
        "$work/counters.csv" "$python" -m tools.gpu_steps forward --models 8B --out "$work/counted.jsonl"
}

does_it_hold() {
    local pair=(--target demo/target --draft demo/draft) prompts=swiftspec/demo/prompts files limit=24 tokens=48 jobs=16
    local dtype=bf16 traced=18 asked=()
    files=(--profile "$work/profile.json" --trace "$work/trace.npz")
    [[ -z $dry_run ]] || traced=1 limit=1 tokens=16 jobs=1 dtype=fp32 asked=(--policy serial_tree)
    head -n "$traced" $prompts/trace.jsonl >"$work/traced.jsonl"
    step profile 140 "${verbs[@]}" profile "${pair[@]}" "${inflate[@]}" --device "$device" --devices 1 --dtype "$dtype" \
        --accept-noise --out "$work/profile.json"
    if [[ -f $carried/trace.npz ]]; then
        cp "$carried/trace.npz" "$work"
    else
        step trace 45 "${verbs[@]}" trace "${pair[@]}" --dtype "$dtype" --prompts "$work/traced.jsonl" \
            --max-new-tokens "$tokens" --out "$work/trace.npz"
    fi
    step plan 45 "${verbs[@]}" plan "${pair[@]}" "${inflate[@]}" --dtype "$dtype" "${files[@]}" --devices 1 \
        "${asked[@]}" --jobs "$jobs" --out "$work/plan.json"
    step validate 100 "${verbs[@]}" validate --plan "$work/plan.json" --prompts $prompts/validate.jsonl \
        --limit "$limit" --repeats 1 --max-new-tokens "$tokens" --json "$work/validation.json"
    step timeline 40 "${verbs[@]}" run --plan "$work/plan.json" --prompt "def main():" --max-new-tokens "$tokens" \
        --timeline "$work/timeline.json"
    measure sharing 60 sharing "${inflate[@]}"
    measure ops 40 ops "${inflate[@]}"
    if [[ ! $dry_run ]]; then # a CPU has no int4
        step profile-int4 45 "${verbs[@]}" profile "${pair[@]}" "${inflate[@]}" --device cuda --devices 1 \
            --dtype int4 --accept-noise --out "$work/profile-int4.json"
    fi
}

for name in ${only//,/ }; do
    [[ $name == packages ]] || grep -Eq "(step|measure|tests) $name " <<<"$(declare -f "$steps")" \
        || { echo "gpu_runs.sh: run $run has no step $name; $usage" >&2; exit 2; }
done
mkdir -p "$out" || exit 2
bare=$(mktemp -d) # packages and Triton's cache, which are not carried back
work=$(mktemp -d) # everything that all.tar.gz holds
trap 'rm -rf "$work" "$bare"' EXIT
ln -s "$out/records.jsonl" "$work/records.jsonl"
: >"$work/steps.tsv" >"$out/log.txt" >"$out/records.jsonl"

export PYTHONPATH="$PWD:$bare/executor${PYTHONPATH:+:$PYTHONPATH}"
export HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1 TRITON_CACHE_DIR="$bare/triton"
mkdir -p "$TRITON_CACHE_DIR"
SWIFTSPEC_COMMIT=$(git describe --always --dirty 2>/dev/null || cat "$carried/commit" 2>/dev/null) \
    || SWIFTSPEC_COMMIT="unknown commit"
export SWIFTSPEC_COMMIT
if [[ -f $carried/kernels.tar.xz ]]; then
    "$python" -m tools.kernel_cache unpack "$TRITON_CACHE_DIR" "$carried/kernels.tar.xz" \
        >>"$out/log.txt" 2>&1
fi
if compgen -G "$carried/wheels/*.whl" >/dev/null; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$bare/executor" "$carried"/wheels/*.whl \
        >>"$out/log.txt" 2>&1
fi
if ! measure packages 90 packages; then
    tail -n 5 "$out/log.txt" >&2
    echo "gpu_runs.sh: something that every step needs is missing; nothing else was run" >&2
    exit 1
fi
"$steps"
cat "$out/summary.txt"
[[ ! -s $bare/failures ]]
