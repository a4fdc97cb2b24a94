#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the examples say of input that is missing, broken or wrong: exit status 1 and one line that names it, every time.
#   example_errors.sh GLM_LAYER GOLDEN_DIR ENGINE_LOOP
set -euo pipefail
program=$1 golden=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
file=$folder/case.json
count=0 failures=0

# refused WORDS ARGUMENTS...: the program must fail with one line that has these words.
refused() {
  local words=$1 status=0
  shift
  "$program" "$@" > /dev/null 2> "$folder/said" || status=$?
  count=$((count + 1))
  if [ $status -ne 1 ] || [ "$(wc -l < "$folder/said")" -ne 1 ] || ! grep -qF -- "$words" "$folder/said"; then
    echo "FAILED: ${program##*/} $*: status $status, wanted 1 and one line with: $words"
    sed 's/^/  | /' "$folder/said"
    failures=$((failures + 1))
  fi
}
# changed SED-SCRIPT WORDS: the same for a good file after such a change; the line also names the file.
changed() {
  sed "$1" "$golden/kda_layer-glm-37.json" > "$file"
  if cmp --quiet "$file" "$golden/kda_layer-glm-37.json"; then
    echo "FAILED: no change by $1"
    failures=$((failures + 1))
  fi
  refused "$file: $2" --golden "$folder"
}

refused "$folder: no kda_layer file" --golden "$folder"
refused "$folder/none: " --golden "$folder/none"
refused "usage: " --golden
refused "usage: " --surprise
refused "--isa avx1024: " --isa avx1024 --golden "$golden"

cp "$golden/conv-W4-silu-T3.json" "$file"
refused "$folder: no kda_layer file" --golden "$folder"
for bytes in 0 1 300 20000; do
  head -c $bytes "$golden/kda_layer-glm-37.json" > "$file"
  refused "$file: cannot be read as JSON: " --golden "$folder"
done
echo 'no JSON' > "$file"
refused "$file: cannot be read as JSON: " --golden "$folder"
echo '[1]' > "$file"
refused "$file: the file is not an object" --golden "$folder"
rm "$file"
mkdir "$file"
refused "$file: " --golden "$folder"
rmdir "$file"
ln -s "$folder/nowhere" "$file"
refused "$file: cannot be opened" --golden "$folder"
rm "$file"

changed 's/"format": "kda-golden"/"format": "golden"/' 'the file.format is "golden"'
changed 's/"version": 1/"version": 2/' 'has a version other than 1'
changed '/"version"/d' 'the file has no "version"'
changed '/"op"/d' 'the file has no "op"'
changed '/"origin"/d' 'the file has no "origin"'
changed 's/"inputs": {/"more": 0, "inputs": {/' 'the file has an unexpected "more"'
changed 's/"inputs": {/"inputs": {"more": 0, /' 'inputs has an unexpected "more"'
changed 's/"rms_eps"/"more": 0, "rms_eps"/' 'params has an unexpected "more"'
changed 's/"q_proj": {/"q_proj": {"more": 0, /' 'inputs.q_proj has an unexpected "more"'
changed 's/"q_proj"/"q"/' 'inputs has no "q_proj"'
changed 's/"f_b"/"f"/' 'inputs'
changed 's/"state_out"/"state"/' 'outputs has no "state_out"'
changed 's/"max_rel"/"bound"/' 'outputs.y has no "max_rel"'
changed 's/"hidden": 20/"hidden": "20"/' 'params.hidden is not a whole number'
changed 's/"hidden": 20/"hidden": -20/' 'params.hidden is not a whole number'
changed 's/"heads": 3/"heads": 1e300/' 'params.heads is not a whole number'
changed 's/"heads": 3/"heads": 4/' 'inputs.q_proj does not have the shape [48, 20]'
changed 's/"shape": \[36, 20\]/"shape": [20, 36]/' 'inputs.q_proj does not have the shape [36, 20]'
changed 's/"splits": \[37\]/"splits": [30, 6]/' 'inputs.hidden_states does not have the shape [36, 20]'
changed 's/^0.206,//' 'inputs.hidden_states does not hold 740 values'
changed 's/^0.206,/"0.206",/' 'inputs.hidden_states holds something that is not a finite number'
changed 's/^0.206,/1e99,/' 'inputs.hidden_states holds something that is not a finite number'
changed 's/"max_rel": 5e-06/"max_rel": -1/' 'outputs.y has a negative bound'
changed 's/"law": "bounded"/"law": "bound"/' 'params.law is "bound"'
changed 's/"law": "bounded"/"law": "softplus"/' 'params.lower_bound is not null'
changed 's/"lower_bound": -5.0/"lower_bound": null/' 'params.lower_bound is not a number'
changed 's/"lower_bound": -5.0/"lower_bound": 5.0/' 'delta rule: gate_params.lower_bound is outside its range'
changed 's/"rms_eps": 1e-05/"rms_eps": -1/' 'norm: eps is outside its range'

sed 's/^0.206,/0.207,/' "$golden/kda_layer-glm-37.json" > "$file"
refused "$folder: an error is beyond its bound" --golden "$folder"

program=$3
refused "usage: " --requests
refused "usage: " 7
refused "--isa avx1024: " --isa avx1024
for number in 0 -1 1.5 x 7x "" 99999999999999999999; do
  refused "--requests $number: is no whole number from 1 to " --requests "$number"
  refused "--threads $number: is no whole number from 1 to " --threads "$number"
done
refused "--seed -1: is no whole number from 0 to " --seed -1

echo "$count ways to go wrong, $failures not refused as they should be"
[ "$failures" -eq 0 ]
