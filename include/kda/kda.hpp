// SPDX-License-Identifier: Apache-2.0
// kda: gated delta-rule linear attention on CPUs. This header is all an engine includes.
//
//   say what is needed     spec.hpp (options), args.hpp (tensors), batch.hpp (sequences and slots), executor.hpp
//   call it                kernels.hpp (this file's ISA), dispatch.hpp and export.hpp (several ISAs)
//   see how it works       gate.hpp, conv.hpp, norm.hpp -> prologue.hpp -> recurrent.hpp or chunked.hpp, over simd/;
//                          delta_rule.hpp and step.hpp take sequences through them
#pragma once
#include "args.hpp"
#include "batch.hpp"
#include "bf16.hpp"
#include "cpu.hpp"
#include "dispatch.hpp"
#include "executor.hpp"
#include "export.hpp"
#include "f16.hpp"
#include "kernels.hpp"
#include "saved_state.hpp"
#include "spec.hpp"
#include "status.hpp"
#include "version.hpp"
#include "view.hpp"
