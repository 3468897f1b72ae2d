#!/usr/bin/env bash
# Checks swiftspec on a GPU in under eight minutes, without a network: correctness, speed, prediction.
#
#   scripts/gpu_check.sh [--device cuda|cpu] [--quick] [--only STAGE[,STAGE...]]
#
# Every stage has a time limit of its own, and one that fails is recorded and passed over. Writes gpu-check.json (every
# figure), summary.txt, log.txt and what the stages made into $OUT, by default ./gpu-check. Exit code 0 if every stage
# did what it should; whether the criteria hold is the document's to say. --device cpu --quick is a dry run: the same
# stages at tiny shapes. PYTHON chooses the interpreter.

set -uo pipefail

device=cuda quick="" only=""
while (($#)); do
    case $1 in
        --device) device=${2:?--device needs cuda or cpu}; shift 2 ;;
        --quick) quick=--quick; shift ;;
        --only) only=,${2:?--only needs names of stages},; shift 2 ;;
        *) echo "gpu_check.sh: unknown option $1" >&2; exit 2 ;;
    esac
done
case $device in cuda | cpu) ;; *) echo "gpu_check.sh: --device is $device; expected cuda or cpu" >&2; exit 2 ;; esac

out=$(realpath -m "${OUT:-gpu-check}")
mkdir -p "$out" || exit 2
cd "$(dirname "$0")/.." || exit 2
export PYTHONPATH=$PWD HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/begin"
: >"$work/stages.tsv"
: >"$out/log.txt"
failures=0

# stage NAME LIMIT_S COMMAND...
stage() {
    local name=$1 limit_s=$(($2 * patience)) code start_s=$SECONDS
    shift 2
    [[ -z $only || $only == *,$name,* ]] || return 0
    echo "== $name: $*" | tee -a "$out/log.txt"
    timeout --kill-after=5 "$limit_s" "$@" >>"$out/log.txt" 2>&1
    code=$?
    ((code == 0)) || failures=$((failures + 1))
    printf '%s\t%s\t%s\t%s\n' "$name" "$limit_s" $((SECONDS - start_s)) "$code" >>"$work/stages.tsv"
}

# check STAGE LIMIT_S WHAT [OPTION...]
check() { stage "$1" "$2" "$python" -m swiftspec.profiler.gpu_check "$3" "$work" --device "$device" $quick "${@:4}"; }
swiftspec=("$python" -m swiftspec.cli)
# The bundled pair at the size of an 8B model says what the small one says.
inflate=(--inflate layers=32,hidden=4096,heads=64,intermediate=14336)
patience=1
[[ $device == cuda ]] || inflate=() patience=5
pair=(--target demo/target --draft demo/draft)
prompts=swiftspec/demo/prompts
head -n 24 $prompts/trace.jsonl >"$work/traced.jsonl"
plan=$work/plan.json

stage tests 90 "$python" -m pytest -q -o addopts=--import-mode=importlib -o minversion=8 tests/kernels
if [[ $device == cuda ]]; then
    stage tune 80 "$python" -m swiftspec.kernels.tuning
    find swiftspec/kernels/tables -name '*.json' -newer "$work/begin" -exec cp {} "$out" \;
fi
check kernels 45 kernels
check forward 35 forward
if [[ $device == cuda ]]; then
    check forward-fp8 25 forward --dtype fp8
fi
stage profile 90 "${swiftspec[@]}" profile "${pair[@]}" "${inflate[@]}" --device "$device" --devices 1 --dtype bf16 \
    --accept-noise --out "$out/profile.json" --ops "$out/ops.npz"
stage trace 20 "${swiftspec[@]}" trace "${pair[@]}" --dtype bf16 --prompts "$work/traced.jsonl" \
    --max-new-tokens 48 --out "$work/trace.npz"
stage plan 20 "${swiftspec[@]}" plan "${pair[@]}" "${inflate[@]}" --dtype bf16 --profile "$out/profile.json" \
    --trace "$work/trace.npz" --devices 1 --out "$plan"
stage validate 50 "${swiftspec[@]}" validate --plan "$plan" --prompts $prompts/validate.jsonl --limit 4 \
    --max-new-tokens 48 --json "$work/validation.json"
if [[ $device == cuda ]]; then
    stage profile-int4 45 "${swiftspec[@]}" profile "${pair[@]}" "${inflate[@]}" --device cuda --devices 1 \
        --dtype int4 --accept-noise --out "$out/profile-int4.json"
fi
check sharing 60 sharing "${inflate[@]}"
stage timeline 20 "${swiftspec[@]}" run --plan "$plan" --prompt "def main():" --max-new-tokens 48 \
    --timeline "$out/timeline.json"

"$python" -m swiftspec.profiler.gpu_check gather "$work" --device "$device" $quick --out "$out/gpu-check.json" |
    tee "$out/summary.txt" || failures=$((failures + 1))
exit $((failures > 0))
