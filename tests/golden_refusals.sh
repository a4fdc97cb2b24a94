#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests the golden test: files that are wrong in one thing each must fail, with a reason that names the thing, and count.
#   golden_refusals.sh PROGRAM ISA   PROGRAM: kda_golden_test; ISA: one that it has and this CPU can run
set -euo pipefail
program=$(realpath "$1") isa=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/files" "$work/empty"
cd "$work/files"

# ---- files that are right, from which the others are made
frame() { # frame OP PARAMS INPUTS OUTPUTS
  echo '{"format": "kda-golden", "version": 1, "name": "a name", "op": "'"$1"'", "origin": {"any": ["thing"]},' \
    '"params": {'"$2"'}, "inputs": {'"$3"'}, "outputs": {'"$4"'}}'
}
tensor() { echo '"'"$1"'": {"shape": ['"$2"'], "data": ['"$3"']'"${4:+, $4}"'}'; } # tensor NAME SHAPE DATA [MORE]
bound='"max_abs": 0, "max_rel": 1e-5'
loose='"max_abs": 100, "max_rel": 0'

l2norm=$(frame l2norm '"eps": 0, "scale": 1' "$(tensor x 1,1,2 3,4)" "$(tensor y 1,1,2 0.6,0.8 "$bound")")
gate=$(frame gate_per_head '"law": "softplus", "lower_bound": null' \
  "$(tensor x 1,2 1,1), $(tensor A_log 2 0,200), $(tensor dt_bias 2 0,0)" "$(tensor g 1,2 '-1.3132617,"-inf"' "$bound")")
conv=$(frame conv '"width": 2, "activation": "none"' "$(tensor x 1,1 3), $(tensor weight 1,2 10,1), $(tensor state_in 1,1 2)" \
  "$(tensor y 1,1 23 "$bound"), $(tensor state_out 1,1 3 '"max_abs": 0, "max_rel": 0')")
delta_rule=$(frame delta_rule '"decay": "per_channel", "l2norm": false, "scale": null' \
  "$(tensor q 1,1,1 1), $(tensor k 1,1,1 1), $(tensor v 1,1,1 2), $(tensor g 1,1,1 '"-inf"'), $(tensor beta 1,1 0.5), $(tensor state_in 1,1,1 3)" \
  "$(tensor o 1,1,1 1 "$bound"), $(tensor state_out 1,1,1 1 "$bound")")
layer=$(frame kda_layer '"hidden": 1, "heads": 1, "head_dim": 1, "conv_width": 2, "conv_activation": "silu", "law": "bounded",
  "lower_bound": -5, "rms_eps": 1e-6, "splits": [2, 1]' \
  "$(tensor hidden_states 3,1 1,2,3), $(tensor q_proj 1,1 1), $(tensor k_proj 1,1 1), $(tensor v_proj 1,1 1),
  $(tensor conv_weight 3,2 1,1,1,1,1,1), $(tensor f 1,1 1), $(tensor A_log 1 0), $(tensor dt_bias 1,1 0), $(tensor b_proj 1,1 1),
  $(tensor g_a 1,1 1), $(tensor g_b 1,1 1), $(tensor norm_weight 1 1), $(tensor o_proj 1,1 1)" \
  "$(tensor y 3,1 0,0,0 "$loose"), $(tensor state_out 1,1,1 0 "$loose"), $(tensor conv_state_out 1,3 0,0,0 "$loose")")

# ---- the files: expected[NAME] is a part of the file's line
declare -A expected=()
right() { # right NAME OP [SED-SCRIPT]
  expected[$1]="ok      $1 "
  sed "${3:-}" <<< "${!2}" > "$1.json"
}
wrong() { # wrong NAME REASON OP SED-SCRIPT: the script must change something
  expected[$1]=$2
  sed "$4" <<< "${!3}" > "$1.json"
  ! cmp -s "$1.json" - <<< "${!3}" || { echo "golden_refusals.sh: ERROR: $1 is no different" >&2; exit 1; }
}
right right-l2norm l2norm
right right-gate gate
right right-conv conv
right right-delta_rule delta_rule
right right-layer layer
right right-half-a-bound l2norm 's/0\.6,/0.600004,/'
right right-longer-A_log gate 's/"A_log": {"shape": \[2\], "data": \[0,200\]/"A_log": {"shape": [3], "data": [0,200,7]/'
right right-no-tokens conv 's/\[1,1\], "data": \[3\]}/[0,1], "data": []}/; s/\[1,1\], "data": \[23\]/[0,1], "data": []/; s/"state_out": {"shape": \[1,1\], "data": \[3\]/"state_out": {"shape": [1,1], "data": [2]/'

wrong truncated 'cannot be read' l2norm 's/"data": \[0.6.*//'
wrong nothing 'cannot be read' l2norm 'd'
wrong more-behind 'cannot be read' l2norm 's/$/}/'
wrong not-an-object 'the file is not an object' l2norm 's/.*/[]/'
wrong nan 'cannot be read' l2norm 's/3,4/3,NaN/'
wrong infinity 'cannot be read' l2norm 's/3,4/3,Infinity/'
wrong beyond-double 'cannot be read' l2norm 's/3,4/3,1e999/'
wrong beyond-float 'inputs.x.data holds 1e+39 at 1' l2norm 's/3,4/3,1e39/'
wrong number-in-quotes 'inputs.x.data holds "4" at 1' l2norm 's/3,4/3,"4"/'
wrong no-log-decay 'inputs.x.data holds "-inf" at 1' l2norm 's/3,4/3,"-inf"/'
wrong plus-inf 'inputs.g.data holds "inf" at 0' delta_rule 's/-inf/inf/'
wrong null-element 'inputs.x.data holds null at 0' l2norm 's/3,4/null,4/'
wrong true-element 'inputs.x.data holds true at 1' l2norm 's/3,4/3,true/'
wrong nested-data 'inputs.x.data' l2norm 's/3,4/[3,4]/'
wrong data-no-list 'inputs.x.data is not a list' l2norm 's/\[3,4\]/3/'

wrong other-format 'format is "golden", not kda-golden' l2norm 's/kda-golden/golden/'
wrong other-version 'version is 2, not 1' l2norm 's/"version": 1/"version": 2/'
wrong unknown-op 'op is "l1norm"' l2norm 's/l2norm/l1norm/'
wrong no-name 'the file lacks name' l2norm 's/"name": "a name", //'
wrong no-origin 'the file lacks origin' l2norm 's/"origin": {"any": \["thing"\]},//'
wrong no-inputs 'the file lacks inputs' l2norm 's/"inputs": {.*}, "outputs"/"outputs"/'
wrong inputs-no-object 'inputs is not an object' l2norm 's/"inputs": {.*}, "outputs"/"inputs": [], "outputs"/'
wrong no-input 'inputs lacks x' l2norm 's/"inputs": {.*}, "outputs"/"inputs": {}, "outputs"/'
wrong no-output 'outputs lacks state_out' delta_rule 's/, "state_out": {.*}/}}/'
wrong no-param 'params lacks eps' l2norm 's/"eps": 0, //'
wrong no-shape 'inputs.x lacks shape' l2norm 's/"x": {"shape": \[1,1,2\], /"x": {/'
wrong no-data 'outputs.y lacks data' l2norm 's/"data": \[0.6,0.8\], //'
wrong no-bound 'outputs.y lacks max_rel' l2norm 's/, "max_rel": 1e-5//'

wrong other-key 'the file has the unexpected key "more"' l2norm 's/{/{"more": 1, /'
wrong other-param 'params has the unexpected key "more"' l2norm 's/"eps"/"more": 1, "eps"/'
wrong other-input 'inputs has the unexpected key "z"' l2norm 's/"x"/"z": {"shape": [1], "data": [1]}, "x"/'
wrong other-output 'outputs has the unexpected key "z"' l2norm 's/"y"/"z": {"shape": [1], "data": [1]}, "y"/'
wrong other-in-tensor 'inputs.x has the unexpected key "dtype"' l2norm 's/\[3,4\]/[3,4], "dtype": 1/'
wrong bound-on-input 'inputs.x has the unexpected key "max_abs"' l2norm 's/\[3,4\]/[3,4], "max_abs": 1/'
wrong key-twice 'the key "eps" is there twice' l2norm 's/"eps": 0/"eps": 0, "eps": 1/'
wrong two-gates 'inputs has the unexpected key "f_a"' layer 's/"f"/"f_a": {"shape": [1,1], "data": [1]}, "f"/'
wrong no-gate 'inputs lacks f_a' layer 's/"f":/"h":/'

wrong rank 'inputs.x.shape is [1,2], not [?,?,?]' l2norm 's/"x": {"shape": \[1,1,2\]/"x": {"shape": [1,2]/'
wrong elements 'inputs.x.data holds 2 elements for the shape [1,1,3]' l2norm 's/"x": {"shape": \[1,1,2\]/"x": {"shape": [1,1,3]/'
wrong output-shape 'outputs.y.shape is [1,2,1], not [1,1,2]' l2norm 's/"y": {"shape": \[1,1,2\]/"y": {"shape": [1,2,1]/'
wrong transposed 'inputs.weight.shape is [2,1], not [1,2]' conv 's/"weight": {"shape": \[1,2\]/"weight": {"shape": [2,1]/'
wrong negative-extent 'inputs.x.shape holds something that is not a count' l2norm 's/"x": {"shape": \[1,1,2\]/"x": {"shape": [-1,-1,2]/'
wrong half-an-extent 'inputs.x.shape holds something that is not a count' l2norm 's/"x": {"shape": \[1,1,2\]/"x": {"shape": [1,1,2.0]/'
wrong splits 'params.splits does not add up to the 3 tokens' layer 's/\[2, 1\]/[2, 2]/'
wrong short-A_log 'inputs.A_log.shape is [1], too short for 2 heads' gate 's/"A_log": {"shape": \[2\], "data": \[0,200\]/"A_log": {"shape": [1], "data": [0]/'

wrong flag 'params.l2norm is neither true nor false' delta_rule 's/false/0/'
wrong scale 'params.scale is not a number' delta_rule 's/"scale": null/"scale": "1"/'
wrong no-scale 'params.scale is not above 0' delta_rule 's/"scale": null/"scale": 0/'
wrong decay 'params.decay is "none", not per_channel or per_head' delta_rule 's/per_channel/none/'
wrong eps 'params.eps is below 0' l2norm 's/"eps": 0/"eps": -1/'
wrong width 'params.width is not a count' conv 's/"width": 2/"width": "2"/'
wrong bound 'outputs.y.max_rel is below 0' l2norm 's/1e-5/-1e-5/'
wrong bound-of-other-law 'params.lower_bound is not null' gate 's/null/-5/'
wrong bound-missing 'params.lower_bound is not a number' gate 's/softplus/bounded/'
wrong bound-above-0 'params.lower_bound is not below 0' gate 's/softplus/bounded/; s/null/5/'

wrong two-bounds-off 'y 2.00 (' l2norm 's/0\.6,/0.600016,/'
wrong no-number 'y inf (' l2norm 's/3,4/0,0/'
wrong off-without-bound 'state_out inf (' conv 's/"data": \[3\], "max_abs"/"data": [3.000001], "max_abs"/'
wrong finite-for-infinite 'g inf (' gate 's/-1.3132617/"-inf"/'
wrong infinite-for-finite 'g inf (' gate 's/"-inf"/-2/'
wrong refused-by-kernel 'v has a shape' delta_rule 's/"\([qk]\)": {"shape": \[1,1,1\], "data": \[1\]/"\1": {"shape": [1,2,1], "data": [1,1]/g'
wrong refused-width 'weight has a shape' conv \
  's/"width": 2/"width": 5/; s/\[1,2\], "data": \[10,1\]/[1,5], "data": [0,0,0,10,1]/; s/\(state_[a-z]*": {"shape": \)\[1,1\], "data": \[[23]\]/\1[4,1], "data": [0,0,0,0]/g'
echo 'no case' > README.md
ln -s nowhere dangling.json
mkdir folder.json
expected[dangling]='cannot be opened' expected[folder]='cannot be read'

# ---- what the program says of them
failures=0
complain() { echo "golden_refusals: $*"; failures=$((failures + 1)); }
run() { # run FOLDER: output and exit status
  status=0
  output=$(KDA_TEST_ISA=$isa KDA_GOLDEN_DIR=$1 "$program" 2>&1) || status=$?
}
expect() { # expect WHAT STATUS LAST-LINE
  [ "$status" = "$2" ] || complain "$1: exit status $status, not $2"
  [ "$(tail -1 <<< "$output")" = "$3" ] || complain "$1: last line is '$(tail -1 <<< "$output")', not '$3'"
}

run "$work/files"
bad=0
for name in "${!expected[@]}"; do
  verdict=FAILED
  [[ $name == right-* ]] && verdict=ok || bad=$((bad + 1))
  line=$(grep -E "^$verdict +$name " <<< "$output") || { complain "no '$verdict' for $name: $(grep -E "^[okFAILED]+ +$name " <<< "$output")"; continue; }
  [[ $line == *"${expected[$name]}"* ]] || complain "no '${expected[$name]}' in: $line"
done
expect "all files" 1 "golden: ${#expected[@]} files, $bad failed"
[ "$(wc -l <<< "$output")" = $((${#expected[@]} + 2)) ] || complain "not one line a file"

mkdir "$work/one"
cp right-l2norm.json "$work/one"
run "$work/one"
expect "a right file" 0 "golden: 1 files, 0 failed"
mv two-bounds-off.json "$work/one/right-l2norm.json"
run "$work/one"
expect "a wrong file" 1 "golden: 1 files, 1 failed"
run "$work/empty"
expect "an empty folder" 1 "golden: 0 files, 1 failed"
run "$work/nowhere"
expect "no folder" 1 "golden: 0 files, 1 failed"
status=0
output=$(KDA_TEST_ISA=none KDA_GOLDEN_DIR=$work/one "$program") || status=$?
expect "an ISA that is none" 1 "golden: 0 files, 1 failed"

echo "golden_refusals: ${#expected[@]} files, $failures complaints"
[ $failures = 0 ]
