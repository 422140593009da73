#!/usr/bin/env bash
# Orrery beside transformers and TRL on the same CPU cores: same model, prompts, shapes, threads and
# number format, the two programs in turns, medians of all rounds.
#
#   peers.sh ORRERY PYTHON TRL_STEP [ROUNDS] [MEASUREMENT...]
#
# ORRERY: the built binary. PYTHON: one that imports torch, transformers and trl. TRL_STEP: the script
# that measures the peers: with --model DIR it makes model, tokenizer and prompts.jsonl in DIR, and it
# prints one JSON line a measurement. MEASUREMENT: tiny_generate, tiny_step, smol_float32,
# smol_bfloat16; all where none is named. THREADS (2) and PREFIX (a command put before both programs,
# such as "chrt -r 20") are read from the environment; WORK keeps the models for another time.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
orrery=$1 python=$2 trl_step=$3 rounds=${4:-3}
measurements=("${@:5}")
((${#measurements[@]})) || measurements=(tiny_generate tiny_step smol_float32 smol_bfloat16)
threads=${THREADS:-2}
read -ra prefix <<< "${PREFIX-}"
work=${WORK:-$(mktemp -d)}
[[ -n ${WORK-} ]] || trap 'rm -rf "$work"' EXIT
log=$work/lines.jsonl
: > "$log"

peer() {  # LABEL MODEL ARGUMENTS...
  "${prefix[@]}" "$python" "$trl_step" --threads "$threads" --model "$work/$2" "${@:3}" 2> /dev/null |
    sed "s/^{/{\"label\":\"$1\",\"side\":\"peer\",/" >> "$log"
}

ours() {  # LABEL KIND MODEL REPEAT SETTINGS...
  local settings=()
  for setting in "${@:5}"; do settings+=(--set "$setting"); done
  "${prefix[@]}" "$orrery" bench "$2" "$here/bench.yaml" --json --repeat "$4" \
    --set "model.path=$work/$3" --set "data.source=$work/$3/prompts.jsonl" \
    --set "run.threads=$threads" "${settings[@]}" |
    sed "s/^{/{\"label\":\"$1\",\"side\":\"ours\",/" >> "$log"
}

tiny_generate() {
  for n in 32 256; do
    ours "tiny generate $n" rollout tiny 5 "rollout.prompts_per_step=$n" rollout.samples_per_prompt=1
  done
  peer "tiny generate" tiny --gen-only --reps 5
}
tiny_step() {
  ours "tiny step" step tiny 5
  peer "tiny step" tiny --fixed --steps 6
}
smol_generate() {
  ours "smol generate $1" rollout smol 2 "model.dtype=$1" rollout.samples_per_prompt=1
  peer "smol generate $1" smol --smol --gen-only --reps 2 --dtype "$2"
}
smol_float32() { smol_generate float32 fp32; }
smol_bfloat16() { smol_generate bfloat16 bf16; }

for kind in tiny smol; do
  [[ " ${measurements[*]}" == *" $kind"* && ! -e $work/$kind/config.json ]] || continue
  [[ $kind == smol ]] && shape=(--smol) || shape=()
  "$python" "$trl_step" "${shape[@]}" --model "$work/$kind" --make-only > /dev/null 2>&1
done
for ((round = 1; round <= rounds; ++round)); do
  for measurement in "${measurements[@]}"; do
    echo "round $round of $rounds: $measurement" >&2
    "$measurement"
  done
done

"$python" - "$log" <<'PYTHON'
import collections, json, statistics, sys

values = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    r = json.loads(line)
    if r["side"] == "ours":
        values[r["label"]]["ours"] += r["seconds"] if r["bench"] == "step" else r["tokens_per_s"]
    elif "step_s" in r:
        values[r["label"]]["peer"] += r["step_s"]
    else:
        for n in (32, 256):
            if f"gen{n}_tokens_per_s" in r:
                label = f"tiny generate {n}" if r["label"] == "tiny generate" else r["label"]
                values[label]["peer"].append(r[f"gen{n}_tokens_per_s"])
print(f"{'':26} {'ours (spread)':>30} {'peer (spread)':>30}   faster")
for label, sides in values.items():
    text = {}
    for side, v in sides.items():
        text[side] = f"{statistics.median(v):.4g} ({min(v):.4g} to {max(v):.4g})"
    a, b = statistics.median(sides["ours"]), statistics.median(sides["peer"])
    unit = "s" if label.endswith("step") else "tokens/s"
    print(f"{label + ', ' + unit:26} {text['ours']:>30} {text['peer']:>30}   {b / a if unit == 's' else a / b:.2f}")
PYTHON
